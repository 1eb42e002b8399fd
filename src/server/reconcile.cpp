// Reconciliation and repair (contract, section 9).
#include "pg.hpp"

extern "C" {
#include "funcapi.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
}

#include "entry.h"
#include "event_id.hpp"
#include "snapshots.hpp"

namespace kudos::server {
namespace {

constexpr const char *snapshot_hint = "Take a new snapshot with kudos_snapshot(), or compare the balances with the "
                                      "whole archive: kudos_reconcile(snapshot, true).";

// What a reconciliation compares with: the marks of the snapshot, or the whole archive.
struct Baseline {
    const char *snapshot_id;
    const char *taken; // naive UTC as text; null where the Horde's table has no rows of it
    bool full;
    StoredMark of[archive_count];

    const Mark &ledger() const { return of[static_cast<int>(Archive::ledger)].mark; }
    const Mark &stat_events() const { return of[static_cast<int>(Archive::stat_events)].mark; }
};
static_assert(jump_safe<Baseline>);

[[noreturn]] void refuse_unknown(const char *snapshot_id)
{
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("snapshot \"%s\" does not exist", snapshot_id),
                    errhint("kudos_snapshot() takes one and gives its id.")));
    pg_unreachable();
}

// When its balances were taken, naive UTC as text; null: it has none.
const char *balances_taken(const SnapshotSession &session, const char *snapshot_id)
{
    const Rows rows = run(session, psprintf("SELECT min(b.created)::text FROM %s b WHERE b.snapshot_id = '%s'",
                                            session.balances_name, snapshot_id));
    return rows.is_null(0, 1) ? nullptr : copy_text(rows, 0, 1);
}

Baseline baseline_of(const SnapshotSession &session, Datum snapshot, bool full)
{
    Baseline baseline{};
    baseline.snapshot_id = DatumGetCString(DirectFunctionCall1(uuid_out, snapshot));
    baseline.full = full;
    baseline.taken = balances_taken(session, baseline.snapshot_id);
    if (full) {
        if (baseline.taken == nullptr)
            refuse_unknown(baseline.snapshot_id);
        return baseline;
    }
    for (int a = 0; a < archive_count; a++) {
        const auto archive = static_cast<Archive>(a);
        StoredMark &stored = baseline.of[a];
        stored = mark_of_snapshot(session, archive, baseline.snapshot_id);
        if (!stored.found && baseline.taken != nullptr)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("snapshot \"%s\" was not taken by kudos_snapshot()", baseline.snapshot_id),
                            errdetail("It holds balances and no mark in the archive."), errhint("%s", snapshot_hint)));
        if (!stored.found)
            refuse_unknown(baseline.snapshot_id);
        const char *problem = distrust(session, archive, stored);
        if (problem != nullptr)
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("snapshot \"%s\" can no longer be compared with the rows since", baseline.snapshot_id),
                     errdetail("%s", problem), errhint("%s", snapshot_hint)));
    }
    return baseline;
}

// One drifted target; texts and numerics live as long as the SPI connection.
struct Drift {
    const char *target;
    const char *key;
    Datum expected;
    Datum actual;
    Datum drift;
};
static_assert(jump_safe<Drift>);

std::span<Drift> find_drift(const SnapshotSession &session, const Baseline &baseline)
{
    StringInfoData sql;
    initStringInfo(&sql);
    if (baseline.full)
        append_full_drift(&sql, *session.schema, session.balances_name, baseline.snapshot_id);
    else
        append_drift(&sql, *session.schema, baseline.snapshot_id, baseline.ledger(), baseline.stat_events());
    const Rows rows = run(session, sql.data, true);
    std::span<Drift> drifted = allocate<Drift>(rows.count());
    for (uint64 row = 0; row < rows.count(); row++)
        drifted[row] = {.target = copy_text(rows, row, 1),
                        .key = copy_text(rows, row, 2),
                        .expected = rows.datum(row, 3),
                        .actual = rows.datum(row, 4),
                        .drift = rows.datum(row, 5)};
    return drifted;
}

Datum texts_of(std::span<const Drift> drifted, const char *Drift::*member)
{
    return array_from(drifted, TEXTOID, [member](const Drift &drift) { return text_datum(drift.*member); });
}

// ---------------------------------------------------------------------------------------------
// kudos_reconcile

void reconcile(FunctionCallInfo fcinfo, Datum snapshot, bool full)
{
    auto *results = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    SnapshotSession session = begin_snapshot_session();
    see(session, GetActiveSnapshot());
    const Baseline baseline = baseline_of(session, snapshot, full);
    const std::span<const Drift> drifted = find_drift(session, baseline);

    // Who moved them is asked only where somebody did.
    std::span<Datum> events = allocate<Datum>(drifted.size());
    std::span<Datum> last_events = allocate<Datum>(drifted.size());
    if (!drifted.empty()) {
        StringInfoData sql;
        initStringInfo(&sql);
        append_events(&sql, *session.schema, baseline.ledger(), baseline.stat_events());
        const Oid types[] = {TEXTARRAYOID, TEXTARRAYOID};
        const Datum parameters[] = {texts_of(drifted, &Drift::target), texts_of(drifted, &Drift::key)};
        const Rows rows = run(session, sql.data, true, types, parameters);
        for (uint64 row = 0; row < rows.count(); row++) {
            const auto index = static_cast<std::size_t>(rows.integer(row, 1) - 1);
            events[index] = rows.datum(row, 2);
            last_events[index] = rows.datum(row, 3);
        }
    }
    for (std::size_t i = 0; i < drifted.size(); i++) {
        Datum values[] = {CStringGetTextDatum(drifted[i].target),
                          CStringGetTextDatum(drifted[i].key),
                          drifted[i].expected,
                          drifted[i].actual,
                          drifted[i].drift,
                          events[i],
                          last_events[i]};
        bool nulls[lengthof(values)] = {};
        if (last_events[i] == Datum{0})
            values[6] = PointerGetDatum(construct_empty_array(UUIDOID));
        tuplestore_putvalues(results->setResult, results->setDesc, values, nulls);
    }
    end_snapshot_session(session);
}

// ---------------------------------------------------------------------------------------------
// kudos_repair

// One event a user, as the Horde derives it; one a counter.
Uuid event_of(const char *snapshot_id, const Drift &drift)
{
    const bool currency = strncmp(drift.target, "users.", strlen("users.")) == 0;
    return event_id_of_key(currency ? psprintf("reconcile:%s:%s", snapshot_id, drift.key)
                                    : psprintf("reconcile:%s:%s:%s", snapshot_id, drift.target, drift.key));
}

// What is asked: $1 targets, $2 keys, $3 amounts, $4 events, $5 UTC now. The way of a target is how a
// row can feed it and nothing else; worker_kudos rows feed two or three targets at once, and a row of
// a team needs a worker, so these have none.
void append_asked(StringInfo sql)
{
    appendStringInfoString(
        sql, "WITH asked AS MATERIALIZED (SELECT a.ord, a.target, a.key, a.amount, a.event_id,"
             " split_part(a.key, '/', 1) AS owner, split_part(a.key, '/', 2) AS second,"
             " substr(a.key, length(split_part(a.key, '/', 1)) + 2) AS action,"
             " substr(a.key, length(split_part(a.key, '/', 1) || split_part(a.key, '/', 2)) + 3) AS record,"
             " CASE WHEN a.target LIKE 'users.%' THEN 'currency' WHEN a.target = 'user_stats' THEN 'user_kudos'"
             " WHEN a.target = 'user_records' AND substr(a.key, length(split_part(a.key, '/', 1) ||"
             " split_part(a.key, '/', 2)) + 3) NOT IN ('user_kudos', 'worker_kudos') THEN 'STAT_RECORD'"
             " WHEN a.target IN ('workers.contributions', 'workers.fulfilments') THEN 'STAT_CONTRIBUTION' END AS way"
             " FROM (SELECT u.ord, u.target, u.key, u.event_id, -round(u.drift, 2) AS amount"
             " FROM unnest($1::text[], $2::text[], $3::numeric[], $4::uuid[])"
             " WITH ORDINALITY u(target, key, drift, event_id, ord)) a)");
}

// Whether the target was repaired before, from this snapshot or from another one since.
void append_decided(StringInfo sql, const SnapshotSession &session, const Baseline &baseline)
{
    // By id, since clocks are set; by time where ids tell nothing.
    const auto since = [&](Archive archive) {
        const char *last = baseline.of[static_cast<int>(archive)].last_id;
        return last != nullptr             ? psprintf("r.id > '%s'::int8", last)
               : baseline.taken != nullptr ? psprintf("r.created > '%s'::timestamp", baseline.taken)
                                           : "true";
    };
    appendStringInfoString(sql,
                           ", repairs AS MATERIALIZED (SELECT l.event_id, l.id, l.created, l.user_id::text AS user_key,"
                           " NULL::text AS target, NULL::text AS key FROM ");
    append_rows_since(sql, session.schema->ledger_name, "x.id, x.event_id, x.created, x.user_id, x.entry_type",
                      baseline.ledger(), "l");
    appendStringInfoString(
        sql, " WHERE l.entry_type = 'RECONCILIATION'"
             " UNION ALL SELECT e.event_id, e.id, e.created, NULL, e.repair ->> 'target', e.repair ->> 'key' FROM ");
    append_rows_since(sql, session.schema->stat_events_name,
                      psprintf("x.id, x.event_id, x.created, x.detail -> '%s' AS repair", repair_key),
                      baseline.stat_events(), "e");
    appendStringInfo(sql,
                     " WHERE e.repair IS NOT NULL), decided AS MATERIALIZED (SELECT a.*, CASE"
                     " WHEN a.way IS NULL THEN 'cannot be repaired by a posting'"
                     " WHEN a.amount IN (0, 'NaN', 'Infinity', '-Infinity') THEN 'is no amount of whole cents'"
                     " WHEN EXISTS (SELECT FROM repairs r WHERE r.event_id = a.event_id) THEN 'posted before'"
                     " WHEN EXISTS (SELECT FROM repairs r WHERE CASE WHEN a.way = 'currency'"
                     " THEN r.user_key = a.key AND %s"
                     " ELSE r.target = a.target AND r.key = a.key AND %s END)"
                     " THEN 'repaired from another snapshot since'"
                     " ELSE 'posted' END AS outcome FROM asked a)",
                     since(Archive::ledger), since(Archive::stat_events));
}

void append_posting(StringInfo sql, const SnapshotSession &session, const Baseline &baseline)
{
    const Schema &schema = *session.schema;
    appendStringInfo(sql,
                     ", currency AS (INSERT INTO %s AS l (created, event_id, entry_type, user_id, escrow, amount,"
                     " applied, detail) SELECT $5, d.event_id, 'RECONCILIATION', d.key::int8,"
                     " d.target = 'users.evaluating_kudos', d.amount, false, jsonb_build_object('snapshot', '%s'::text)"
                     " FROM decided d WHERE d.outcome = 'posted' AND d.way = 'currency' ORDER BY d.key::int8, d.target"
                     " RETURNING l.event_id, l.escrow, l.amount, l.applied)",
                     schema.ledger_name, baseline.snapshot_id);
    appendStringInfo(
        sql,
        ", counters AS (INSERT INTO %s AS e (created, event_id, entry_type, user_id, worker_id, amount, unit,"
        " stat_action, record, detail, applied) SELECT $5, d.event_id,"
        " CASE WHEN d.way = 'user_kudos' THEN 'RECONCILIATION' ELSE d.way END,"
        " CASE WHEN d.way <> 'STAT_CONTRIBUTION' THEN d.owner::int8 END,"
        " CASE WHEN d.way = 'STAT_CONTRIBUTION' THEN d.owner::uuid END, d.amount,"
        " CASE WHEN d.way = 'user_kudos' THEN 'kudos' WHEN d.target = 'workers.contributions'"
        " OR (d.way = 'STAT_RECORD' AND d.second IN ('CONTRIBUTION', 'USAGE')) THEN 'things' ELSE 'count' END,"
        " CASE d.way WHEN 'user_kudos' THEN d.action WHEN 'STAT_RECORD' THEN d.second"
        " ELSE split_part(d.target, '.', 2) END,"
        " CASE d.way WHEN 'user_kudos' THEN 'user_kudos' WHEN 'STAT_RECORD' THEN d.record END,"
        " jsonb_build_object('%s', jsonb_build_object('snapshot', '%s'::text, 'target', d.target, 'key', d.key)), false"
        " FROM decided d WHERE d.outcome = 'posted' AND d.way <> 'currency' ORDER BY d.ord"
        " RETURNING e.event_id, e.amount, e.applied)",
        schema.stat_events_name, repair_key, baseline.snapshot_id);
    appendStringInfoString(
        sql, " SELECT d.outcome, d.amount, d.outcome <> 'posted'"
             " OR EXISTS (SELECT FROM currency c WHERE d.way = 'currency' AND c.event_id = d.event_id"
             " AND c.escrow = (d.target = 'users.evaluating_kudos') AND c.amount = d.amount AND NOT c.applied)"
             " OR EXISTS (SELECT FROM counters c WHERE d.way <> 'currency' AND c.event_id = d.event_id"
             " AND c.amount = d.amount AND NOT c.applied) FROM decided d ORDER BY d.ord");
}

void require_written(const Rows &rows, const SnapshotSession &session)
{
    for (uint64 row = 0; row < rows.count(); row++)
        if (!rows.boolean(row, 3))
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("repairs could not be written to tables %s and %s as intended",
                                   session.schema->ledger_name, session.schema->stat_events_name),
                            errdetail("A trigger or rule changed or skipped them; nothing was posted."),
                            errhint("Remove the trigger or rule, or let RECONCILIATION rows pass.")));
}

void repair(FunctionCallInfo fcinfo, Datum snapshot, bool full)
{
    auto *results = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    SnapshotSession session = begin_snapshot_session();
    see(session, GetLatestSnapshot());
    const Baseline baseline = baseline_of(session, snapshot, full);
    const std::span<const Drift> drifted = find_drift(session, baseline);
    if (drifted.empty()) {
        end_snapshot_session(session);
        return;
    }
    std::span<Uuid> events = allocate<Uuid>(drifted.size());
    for (std::size_t i = 0; i < drifted.size(); i++)
        events[i] = event_of(baseline.snapshot_id, drifted[i]);

    StringInfoData sql;
    initStringInfo(&sql);
    append_asked(&sql);
    append_decided(&sql, session, baseline);
    append_posting(&sql, session, baseline);
    const Oid types[] = {TEXTARRAYOID, TEXTARRAYOID, NUMERICARRAYOID, UUIDARRAYOID, TIMESTAMPOID};
    const Datum parameters[] = {
        texts_of(drifted, &Drift::target),
        texts_of(drifted, &Drift::key),
        array_from(drifted, NUMERICOID, [](const Drift &drift) { return drift.drift; }),
        array_of(events),
        TimestampGetDatum(utc_now()),
    };
    const Rows rows = run(session, sql.data, false, types, parameters);
    require_written(rows, session);
    for (std::size_t i = 0; i < drifted.size(); i++) {
        const Datum values[] = {CStringGetTextDatum(drifted[i].target),
                                CStringGetTextDatum(drifted[i].key),
                                drifted[i].expected,
                                drifted[i].actual,
                                drifted[i].drift,
                                rows.datum(i, 2),
                                uuid_datum(events[i]),
                                rows.datum(i, 1)};
        const bool nulls[lengthof(values)] = {};
        tuplestore_putvalues(results->setResult, results->setDesc, const_cast<Datum *>(values),
                             const_cast<bool *>(nulls));
    }
    end_snapshot_session(session);
}

} // namespace
} // namespace kudos::server

// kudos_reconcile(snapshot, full) (contract, section 9): one row a drifted target, drift = actual -
// expected, in kudos. Writes nothing. 42704 for an unknown snapshot, 55000 for one whose window
// can no longer be vouched for.
Datum kudos_entry_reconcile(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_arguments(fcinfo, "kudos_reconcile()");
    InitMaterializedSRF(fcinfo, 0);
    reconcile(fcinfo, PG_GETARG_DATUM(0), PG_GETARG_BOOL(1));
    return Datum{0};
}

// kudos_repair(snapshot, full) (contract, section 9): posts -drift, unapplied, once a snapshot and
// target; one row a drifted target. Errors of kudos_reconcile(), 25006, and 55000 where a row could
// not be written as meant.
Datum kudos_entry_repair(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_arguments(fcinfo, "kudos_repair()");
    lock_reconciliation("kudos_repair()");
    InitMaterializedSRF(fcinfo, 0);
    repair(fcinfo, PG_GETARG_DATUM(0), PG_GETARG_BOOL(1));
    return Datum{0};
}
