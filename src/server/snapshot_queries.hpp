// The statements behind snapshots: what every target holds, and what rows of the archive add to it
// (contract, section 9). Each function appends to a statement; none runs one.
#pragma once

#include "pg.hpp"

#include <limits>

#include "schema.hpp"

namespace kudos::server {

enum class Archive : uint8 { ledger, stat_events };
constexpr int archive_count = 2;

// Up to which id an archive was settled when a snapshot was taken. What came since are the rows
// beyond the mark, and those of the open ones that were applied later.
struct Mark {
    int64 id = std::numeric_limits<int64>::min(); // nothing was settled
    const char *open_ids = "{}";                  // bigint[] as text: up to the mark, and not applied
};
static_assert(jump_safe<Mark>);

// The detail key by which stat rows of a repair are known.
constexpr const char *repair_key = "kudos_reconciliation";

// CTE standing(target, key, value): every target, with its exact value in kudos.
void append_standing(StringInfo sql, const Schema &schema);

// Subquery of the rows since a mark, aliased; both branches are ranges of the primary key.
void append_rows_since(StringInfo sql, const char *table, const char *columns, const Mark &mark, const char *alias);

// CTEs ending in since(target, key, amount): what applied rows since the marks added, repairs apart.
void append_since(StringInfo sql, const Schema &schema, const Mark &ledger, const Mark &stat_events);
// Its half for stat rows: stat_sums(target, key, amount).
void append_stat_sums(StringInfo sql, const Schema &schema, const Mark &stat_events);

// SELECT target, key, event_id, id of every stat row in the CTE "row_source", once for each target it
// feeds; carried: further columns of it.
void append_stat_feeds(StringInfo sql, const char *row_source, const char *carried);
// Column list of stat rows, with the rule of each.
extern const char *const stat_columns;

// SELECT target, key, expected, actual, drift: targets that are not what they should be.
void append_drift(StringInfo sql, const Schema &schema, const char *snapshot, const Mark &ledger,
                  const Mark &stat_events);
// The same for balances, by the whole archive and kudos_balance_snapshots alone.
void append_full_drift(StringInfo sql, const Schema &schema, const char *snapshots_name, const char *snapshot);

// SELECT ord, events, last events of the targets $1 with keys $2 (text[]), since the marks.
void append_events(StringInfo sql, const Schema &schema, const Mark &ledger, const Mark &stat_events);

} // namespace kudos::server
