// What the three calls of contract section 9 share: who they are, what they see, and how far the archive
// was settled when a snapshot was taken. kudos_snapshot() itself stands in snapshots.cpp,
// kudos_reconcile() and kudos_repair() in reconcile.cpp.
#pragma once

#include "pg.hpp"

#include "session.hpp"
#include "snapshot_queries.hpp"
#include "statement.hpp"

namespace kudos::server {

// --- a call

struct SnapshotSession {
    const Schema *schema;
    Acting acting;
    const char *balances_name; // kudos_balance_snapshots, qualified and quoted
    Snapshot snapshot;         // what every statement of the call sees
};
static_assert(jump_safe<SnapshotSession>);

// Raises 22004 where an argument is NULL.
void require_arguments(FunctionCallInfo fcinfo, const char *function);

// For calls that write: raises 25006 where they cannot, and takes the reconciliation lock. What the call
// sees must be taken after it, also where the caller's transaction has a fixed snapshot of its own.
void lock_reconciliation(const char *function);

// Acts as the ledger's owner, with an SPI connection. Raises what current_schema() does, and 42P01 where
// kudos_balance_snapshots is missing.
SnapshotSession begin_snapshot_session();
void see(SnapshotSession &session, Snapshot snapshot);
void end_snapshot_session(const SnapshotSession &session);

// Runs a SELECT, which may write in a WITH clause unless read_only. It is planned for the values in its text:
// ranges of ids are estimated by the statistics.
Rows run(const SnapshotSession &session, const char *sql, bool read_only = true, std::span<const Oid> types = {},
         std::span<const Datum> parameters = {});

// Runs a SELECT on the unapplied rows of the archives, through their queue indexes only.
Rows run_on_unapplied(const SnapshotSession &session, const char *sql);
// What such a SELECT says of its rows, aliased p, whatever their other flags.
constexpr const char *unapplied = "NOT p.applied AND p.applied IS FALSE";

// Copies out of a result, into the current memory context.
char *copy_text(const Rows &rows, uint64 row, int column);

const char *own_table(const Schema &schema, const char *table);
const char *archive_table(const Schema &schema, Archive archive);
Oid archive_oid(const Schema &schema, Archive archive);
const char *archive_name(Archive archive);

// --- marks

// One archive as a snapshot recorded it.
struct StoredMark {
    bool found;
    Mark mark;
    const char *snapshot_id;
    int64 band_start;
    const char *band;    // of the applied rows from there to the mark: "rows/sum of ids/sum of amounts"
    const char *last_id; // last id given out then, as text; null: nobody could tell
};
static_assert(jump_safe<StoredMark>);

StoredMark mark_of_snapshot(const SnapshotSession &session, Archive archive, const char *snapshot_id);
// The highest one taken under the numbering, up to an id; of several the latest.
StoredMark highest_mark(const SnapshotSession &session, Archive archive, const char *numbering, int64 at_most);

// The applied rows from band_start to the mark, as StoredMark tells of them.
const char *band_of(const SnapshotSession &session, Archive archive, const Mark &mark, int64 band_start);

// Why sums since the mark cannot be believed any more; null: they can.
const char *distrust(const SnapshotSession &session, Archive archive, const StoredMark &stored);

} // namespace kudos::server
