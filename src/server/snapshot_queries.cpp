#include "snapshot_queries.hpp"

namespace kudos::server {
namespace {

// In the order of the enum Table: the name that a target's column goes by, and how its key is spelled
// and joined with the remainder.
struct Spelling {
    const char *target; // followed by the column where the table has several
    bool by_column;
    const char *key;
    const char *remainder_join;
};

constexpr Spelling spellings[table_count] = {
    {"users", true, "t.id::text", "r.id = t.id"},
    {"user_stats", false, "t.user_id || '/' || t.action", "r.user_id = t.user_id AND r.action = t.action"},
    {"worker_stats", false, "t.worker_id || '/' || t.action", "r.worker_id = t.worker_id AND r.action = t.action"},
    {"user_records", false, "t.user_id || '/' || t.record_type || '/' || t.record",
     "r.user_id = t.user_id AND r.record_type = t.record_type::text AND r.record = t.record"},
    {"workers", true, "t.id::text", "r.id = t.id"},
    {"teams", true, "t.id::text", "r.id = t.id"},
};

constexpr const char *ledger_columns = "x.id, x.event_id, x.user_id, x.escrow, x.amount, x.applied, x.entry_type";

constexpr const char *spendable_or_escrow = "CASE WHEN l.escrow THEN 'users.evaluating_kudos' ELSE 'users.kudos' END";

void append_counted_ledger(StringInfo sql, const char *alias)
{
    appendStringInfo(sql, "%s.applied AND %s.entry_type <> 'RECONCILIATION'", alias, alias);
}

void append_counted_stats(StringInfo sql, const char *alias)
{
    appendStringInfo(sql, "%s.applied AND NOT coalesce(%s.detail ? '%s', false)", alias, alias, repair_key);
}

} // namespace

// Which rule a row feeds, in the order of the contract's section 3.
const char *const stat_columns =
    "x.id, x.event_id, x.user_id, x.worker_id, x.team_id, x.amount, x.applied, x.stat_action, x.record, x.detail,"
    " CASE WHEN x.record = 'user_kudos' THEN 1 WHEN x.record = 'worker_kudos' THEN 2"
    " WHEN x.entry_type = 'STAT_RECORD' THEN 3"
    " WHEN x.entry_type = 'STAT_CONTRIBUTION' AND x.stat_action IN ('contributions', 'fulfilments') THEN 4 END AS rule";

void append_standing(StringInfo sql, const Schema &schema)
{
    appendStringInfoString(sql, "standing AS MATERIALIZED (");
    for (int table = 0; table < table_count; table++) {
        const TargetTable &target = schema.target[table];
        const Spelling &spelling = spellings[table];
        for (int c = 0; c < target.columns; c++) {
            const ValueColumn &column = target.column[c];
            // Through text: a cast of double precision to numeric keeps 15 digits only.
            appendStringInfo(sql, "%sSELECT '%s%s%s'::text AS target, %s AS key,", table + c > 0 ? " UNION ALL " : "",
                             spelling.target, spelling.by_column ? "." : "", spelling.by_column ? column.name : "",
                             spelling.key);
            appendStringInfo(sql, column.as_text ? " round(t.%s::text::numeric, 2)" : " t.%s::numeric", column.name);
            appendStringInfo(sql, " + coalesce(r.%s, 0) * 0.01 AS value FROM %s t LEFT JOIN %s r ON %s", column.name,
                             target.name, target.remainder, spelling.remainder_join);
        }
    }
    appendStringInfoString(sql, ")");
}

void append_rows_since(StringInfo sql, const char *table, const char *columns, const Mark &mark, const char *alias)
{
    if (mark.id == std::numeric_limits<int64>::min()) {
        appendStringInfo(sql, "(SELECT %s FROM %s x) %s", columns, table, alias);
        return;
    }
    // The upper bound makes it a range, which the planner takes to be narrow where it has no statistics.
    appendStringInfo(sql,
                     "(SELECT %s FROM %s x WHERE x.id > '" INT64_FORMAT "'::int8 AND x.id <= '" INT64_FORMAT "'::int8"
                     " UNION ALL SELECT %s FROM %s x WHERE x.id <= '" INT64_FORMAT "'::int8"
                     " AND x.id = ANY ('%s'::int8[])) %s",
                     columns, table, mark.id, std::numeric_limits<int64>::max(), columns, table, mark.id, mark.open_ids,
                     alias);
}

void append_stat_feeds(StringInfo sql, const char *row_source, const char *carried)
{
    struct Feed {
        int rule;
        const char *target;
        const char *key;
    };
    constexpr Feed feeds[] = {
        {1, "'user_stats'", "g.user_id || '/' || g.stat_action"},
        {2, "'worker_stats'", "g.worker_id || '/' || g.stat_action"},
        {2, "'workers.kudos'", "g.worker_id::text"},
        {2, "'teams.kudos'", "g.team_id::text"},
        {3, "'user_records'", "g.user_id || '/' || g.stat_action || '/' || g.record"},
        {4, "'workers.' || g.stat_action", "g.worker_id::text"},
        {4, "'teams.' || g.stat_action", "g.team_id::text"},
    };
    const char *separator = "";
    for (const Feed &feed : feeds) {
        appendStringInfo(sql, "%sSELECT %s AS target, %s AS key, %s FROM %s g WHERE g.rule = %d AND (%s) IS NOT NULL",
                         separator, feed.target, feed.key, carried, row_source, feed.rule, feed.key);
        separator = " UNION ALL ";
    }
}

void append_stat_sums(StringInfo sql, const Schema &schema, const Mark &stat_events)
{
    // Summed by dimension first, so that the rows are read once.
    appendStringInfoString(sql, "stat_groups AS MATERIALIZED (SELECT e.rule, e.user_id, e.worker_id, e.team_id,"
                                " e.stat_action, e.record, sum(e.amount) AS amount FROM ");
    append_rows_since(sql, schema.stat_events_name, stat_columns, stat_events, "e");
    appendStringInfoString(sql, " WHERE e.rule IS NOT NULL AND ");
    append_counted_stats(sql, "e");
    appendStringInfoString(sql, " GROUP BY 1, 2, 3, 4, 5, 6),"
                                " stat_sums AS (SELECT f.target, f.key, sum(f.amount) AS amount FROM (");
    append_stat_feeds(sql, "stat_groups", "g.amount");
    appendStringInfoString(sql, ") f GROUP BY 1, 2)");
}

void append_since(StringInfo sql, const Schema &schema, const Mark &ledger, const Mark &stat_events)
{
    append_stat_sums(sql, schema, stat_events);
    appendStringInfo(sql, ", since AS (SELECT %s AS target, l.user_id::text AS key, sum(l.amount) AS amount FROM ",
                     spendable_or_escrow);
    append_rows_since(sql, schema.ledger_name, ledger_columns, ledger, "l");
    appendStringInfoString(sql, " WHERE ");
    append_counted_ledger(sql, "l");
    appendStringInfoString(sql, " GROUP BY l.user_id, l.escrow UNION ALL SELECT target, key, amount FROM stat_sums)");
}

// A user, worker or team that came after the snapshot has no baseline; one that went has no value.
// Rows of the statistics are inserted by the fold itself, so one that was missing held nothing.
void append_drift(StringInfo sql, const Schema &schema, const char *snapshot, const Mark &ledger,
                  const Mark &stat_events)
{
    const char *values = quote_qualified_identifier(schema.extension_schema, "kudos_snapshot_values");
    appendStringInfoString(sql, "WITH ");
    append_standing(sql, schema);
    appendStringInfoString(sql, ", ");
    append_since(sql, schema, ledger, stat_events);
    appendStringInfo(sql,
                     ", compared AS MATERIALIZED (SELECT target, key, o.known, s.there,"
                     " coalesce(o.opening, 0) + coalesce(c.amount, 0) - coalesce(o.counted, 0) AS expected,"
                     " coalesce(s.value, 0) AS actual"
                     " FROM (SELECT v.target, v.key, v.opening, v.counted, true AS known FROM %s v"
                     " WHERE v.snapshot_id = '%s') o"
                     " FULL JOIN (SELECT t.*, true AS there FROM standing t) s USING (target, key)"
                     " FULL JOIN since c USING (target, key))",
                     values, snapshot);
    appendStringInfo(
        sql,
        " SELECT c.target, c.key, round(c.expected, 2), round(c.actual, 2), round(c.actual - c.expected, 2)"
        " FROM compared c"
        " WHERE c.expected IS DISTINCT FROM c.actual AND CASE"
        " WHEN c.target IN ('user_stats', 'user_records')"
        " THEN EXISTS (SELECT FROM %s u WHERE u.id = split_part(c.key, '/', 1)::int8)"
        " WHEN c.target = 'worker_stats'"
        " THEN EXISTS (SELECT FROM %s w WHERE w.id = split_part(c.key, '/', 1)::uuid)"
        " ELSE c.known AND c.there END"
        " ORDER BY c.target COLLATE \"C\", length(c.key), c.key COLLATE \"C\"",
        schema.of(Table::users).name, schema.of(Table::workers).name);
}

void append_full_drift(StringInfo sql, const Schema &schema, const char *snapshots_name, const char *snapshot)
{
    appendStringInfoString(sql, "WITH ");
    append_standing(sql, schema);
    appendStringInfo(
        sql,
        ", applied AS (SELECT l.user_id, coalesce(sum(l.amount) FILTER (WHERE NOT l.escrow), 0) AS spendable,"
        " coalesce(sum(l.amount) FILTER (WHERE l.escrow), 0) AS escrow FROM %s l WHERE ",
        schema.ledger_name);
    append_counted_ledger(sql, "l");
    appendStringInfo(sql,
                     " GROUP BY 1) SELECT c.target, c.key, c.expected, s.value, s.value - c.expected"
                     " FROM %s b LEFT JOIN applied a ON a.user_id = b.user_id"
                     " CROSS JOIN LATERAL (VALUES"
                     " ('users.kudos', b.user_id::text,"
                     " b.balance + coalesce(a.spendable, 0) - b.applied_balance_total),"
                     " ('users.evaluating_kudos', b.user_id::text,"
                     " b.escrow + coalesce(a.escrow, 0) - b.applied_escrow_total)) c (target, key, expected)"
                     " JOIN standing s ON s.target = c.target AND s.key = c.key"
                     " WHERE b.snapshot_id = '%s' AND c.expected IS DISTINCT FROM s.value"
                     " ORDER BY c.target COLLATE \"C\", length(c.key), c.key COLLATE \"C\"",
                     snapshots_name, snapshot);
}

void append_events(StringInfo sql, const Schema &schema, const Mark &ledger, const Mark &stat_events)
{
    appendStringInfoString(sql, "WITH asked AS (SELECT a.target, a.key, a.ord"
                                " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a(target, key, ord)),"
                                " stat_rows AS MATERIALIZED (SELECT e.* FROM ");
    append_rows_since(sql, schema.stat_events_name, stat_columns, stat_events, "e");
    appendStringInfoString(sql, " WHERE e.rule IS NOT NULL"
                                " AND EXISTS (SELECT FROM asked a WHERE a.target NOT LIKE 'users.%') AND ");
    append_counted_stats(sql, "e");
    appendStringInfo(sql, "), feeds AS (SELECT %s AS target, l.user_id::text AS key, l.event_id, l.id FROM ",
                     spendable_or_escrow);
    append_rows_since(sql, schema.ledger_name, ledger_columns, ledger, "l");
    appendStringInfoString(sql, " WHERE EXISTS (SELECT FROM asked a WHERE a.target LIKE 'users.%') AND ");
    append_counted_ledger(sql, "l");
    appendStringInfoString(sql, " UNION ALL ");
    append_stat_feeds(sql, "stat_rows", "g.event_id, g.id");
    appendStringInfoString(sql, ") SELECT e.ord, count(*), (array_agg(e.event_id ORDER BY e.last DESC))[1:5]"
                                " FROM (SELECT a.ord, f.event_id, max(f.id) AS last FROM asked a"
                                " JOIN feeds f USING (target, key) GROUP BY 1, 2) e GROUP BY 1");
}

} // namespace kudos::server
