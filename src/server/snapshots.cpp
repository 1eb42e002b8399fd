// Snapshots, reconciliation and repair (contract, section 9).
#include "pg.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "funcapi.h"
#include "tcop/utility.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
}

#include "entry.h"
#include "event_id.hpp"
#include "session.hpp"
#include "settled_ids.hpp"
#include "snapshot_queries.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

// The Horde's own key, "KURECO": its reconciliation and ours exclude each other.
constexpr int64 reconciliation_lock = 0x4B55445245434F;

// A snapshot names the rows that were open below its mark, up to so many; with more, the mark goes down.
constexpr int max_open_rows = 10000;

// So many ids below the mark are counted again by every reconciliation.
constexpr int64 band_width = 10000;

constexpr const char *archive_names[archive_count] = {"kudos_ledger", "kudos_stat_events"};

constexpr const char *snapshot_hint = "Take a new snapshot with kudos_snapshot(), or compare the balances with the "
                                      "whole archive: kudos_reconcile(snapshot, true).";

// What is known of one archive when a snapshot is taken, or was known then.
struct ArchiveMark {
    Mark mark;
    bool found;
    const char *snapshot; // that it was taken from
    int64 band_start;
    const char *band; // "rows/ids/amount" of its applied rows, as text
    const char *last_id;
};
static_assert(jump_safe<ArchiveMark>);

const char *archive_table(const Schema &schema, Archive archive)
{
    return archive == Archive::ledger ? schema.ledger_name : schema.stat_events_name;
}

Oid archive_oid(const Schema &schema, Archive archive)
{
    return archive == Archive::ledger ? schema.ledger : schema.stat_events;
}

const char *own_table(const Schema &schema, const char *table)
{
    return quote_qualified_identifier(schema.extension_schema, table);
}

const char *uuid_text(Datum uuid)
{
    return DatumGetCString(DirectFunctionCall1(uuid_out, uuid));
}

char *copy_text(const Rows &rows, uint64 row, int column)
{
    const std::string_view text = rows.text(row, column);
    return pnstrdup(text.data(), text.size());
}

// Planned for the values in its text: ranges of ids are estimated by the statistics.
Rows run(const char *sql, Snapshot snapshot, bool read_only, std::span<const Oid> types = {},
         std::span<const Datum> parameters = {})
{
    SPIPlanPtr plan = SPI_prepare(sql, static_cast<int>(types.size()), const_cast<Oid *>(types.data()));
    if (plan == nullptr)
        elog(ERROR, "could not prepare \"%s\": %s", sql, SPI_result_code_string(SPI_result));
    const int code = SPI_execute_snapshot(plan, const_cast<Datum *>(parameters.data()), nullptr, snapshot,
                                          InvalidSnapshot, read_only, true, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "unexpected result of a snapshot's statement: %s", SPI_result_code_string(code));
    return Rows();
}

// ---------------------------------------------------------------------------------------------
// Marks

// All rows up to the mark that are not applied, whatever their other flags, through the queue index.
Rows run_on_unapplied(const Schema &schema, const char *sql, Snapshot snapshot)
{
    const int pinned = pin_plans(schema);
    const Rows rows = run(sql, snapshot, true);
    unpin_plans(pinned);
    return rows;
}

constexpr const char *unapplied = "NOT p.applied AND p.applied IS FALSE";

// Lowers the mark until no more rows are open below it than a snapshot can name, and names them.
Mark with_open_rows(const Schema &schema, Archive archive, Mark mark, Snapshot snapshot)
{
    const char *table = archive_table(schema, archive);
    const Rows beyond =
        run_on_unapplied(schema,
                         psprintf("SELECT p.id::int8 FROM %s p WHERE %s AND p.id <= '" INT64_FORMAT "'::int8"
                                  " ORDER BY p.id OFFSET %d LIMIT 1",
                                  table, unapplied, mark.id, max_open_rows),
                         snapshot);
    if (beyond.count() > 0)
        mark.id = beyond.integer(0, 1) - 1;
    const Rows open =
        run_on_unapplied(schema,
                         psprintf("SELECT coalesce(array_agg(p.id::int8 ORDER BY p.id), '{}')::text FROM %s p"
                                  " WHERE %s AND p.id <= '" INT64_FORMAT "'::int8",
                                  table, unapplied, mark.id),
                         snapshot);
    mark.open_ids = copy_text(open, 0, 1);
    return mark;
}

int64 band_start_of(int64 mark)
{
    return mark < PG_INT64_MIN + band_width ? PG_INT64_MIN : mark - band_width;
}

const char *band_of(const Schema &schema, Archive archive, const Mark &mark, int64 band_start, Snapshot snapshot)
{
    const Rows band =
        run(psprintf("SELECT count(*) || '/' || coalesce(sum(p.id::numeric), 0) || '/' || coalesce(sum(p.amount), 0)"
                     " FROM %s p WHERE p.id > '" INT64_FORMAT "'::int8 AND p.id <= '" INT64_FORMAT "'::int8"
                     " AND p.applied AND p.id <> ALL ('%s'::int8[])",
                     archive_table(schema, archive), band_start, mark.id, mark.open_ids),
            snapshot, true);
    return copy_text(band, 0, 1);
}

// The mark of a snapshot, or the latest one that was taken under the given numbering.
ArchiveMark stored_mark(const Schema &schema, Archive archive, const char *snapshot_id, const char *numbering,
                        Snapshot snapshot)
{
    ArchiveMark stored{};
    const char *condition = snapshot_id != nullptr ? psprintf("m.snapshot_id = '%s'", snapshot_id)
                                                   : psprintf("m.numbering = '%s'", numbering);
    const Rows rows = run(psprintf("SELECT m.snapshot_id::text, m.mark, m.open_ids::text, m.band_start,"
                                   " m.band_rows || '/' || m.band_ids || '/' || m.band_amount, m.last_id::text"
                                   " FROM %s m JOIN %s s ON s.snapshot_id = m.snapshot_id"
                                   " WHERE m.archive = '%s' AND %s ORDER BY s.created DESC, m.mark DESC LIMIT 1",
                                   own_table(schema, "kudos_snapshot_marks"), own_table(schema, "kudos_snapshots"),
                                   archive_names[static_cast<int>(archive)], condition),
                          snapshot, true);
    if (rows.count() == 0)
        return stored;
    stored.found = true;
    stored.snapshot = copy_text(rows, 0, 1);
    stored.mark.id = rows.integer(0, 2);
    stored.mark.open_ids = copy_text(rows, 0, 3);
    stored.band_start = rows.integer(0, 4);
    stored.band = copy_text(rows, 0, 5);
    stored.last_id = rows.is_null(0, 6) ? nullptr : copy_text(rows, 0, 6);
    return stored;
}

// Why sums since the mark cannot be believed any more; null: they can.
const char *distrust(const Schema &schema, Archive archive, const ArchiveMark &stored, Snapshot snapshot)
{
    const Mark &mark = stored.mark;
    const char *table = archive_table(schema, archive);
    const Numbering numbering = numbering_of(archive_oid(schema, archive));
    if (numbering.known() && stored.last_id != nullptr && numbering.last < mark.id)
        return psprintf("Ids of %s begin anew: the last one given out is " INT64_FORMAT
                        ", the snapshot's mark is " INT64_FORMAT ".",
                        table, numbering.last, mark.id);
    const Rows appeared = run_on_unapplied(
        schema,
        psprintf("SELECT count(*), min(p.id)::int8 FROM %s p WHERE %s AND p.id <= '" INT64_FORMAT "'::int8"
                 " AND p.id <> ALL ('%s'::int8[])",
                 table, unapplied, mark.id, mark.open_ids),
        snapshot);
    if (appeared.integer(0, 1) > 0)
        return psprintf(INT64_FORMAT " rows of %s up to the snapshot's mark " INT64_FORMAT
                                     " are unapplied that were applied or not there, the first with id " INT64_FORMAT
                                     ".",
                        appeared.integer(0, 1), table, mark.id, appeared.integer(0, 2));
    const Rows gone = run(psprintf("SELECT (cardinality('%s'::int8[])"
                                   " - (SELECT count(*) FROM %s p WHERE p.id = ANY ('%s'::int8[])))::int8",
                                   mark.open_ids, table, mark.open_ids),
                          snapshot, true);
    if (gone.integer(0, 1) != 0)
        return psprintf(INT64_FORMAT " rows of %s that were queued when the snapshot was taken are gone.",
                        gone.integer(0, 1), table);
    const char *band = band_of(schema, archive, mark, stored.band_start, snapshot);
    if (strcmp(band, stored.band) != 0)
        return psprintf("Applied rows of %s with ids from " INT64_FORMAT " to " INT64_FORMAT
                        " have changed: rows, sum of ids and sum of amounts are %s, and were %s.",
                        table, stored.band_start, mark.id, band, stored.band);
    return nullptr;
}

// ---------------------------------------------------------------------------------------------
// Session of all three calls

struct Session {
    const Schema *schema;
    Acting acting;
    const char *snapshots_name; // the Horde's table of snapshots
    Snapshot snapshot;          // what every statement of the call sees
};
static_assert(jump_safe<Session>);

const char *require_snapshots_table(const Schema &schema)
{
    const Oid namespace_oid = get_namespace_oid(kudos_schema, false);
    if (!OidIsValid(get_relname_relid("kudos_balance_snapshots", namespace_oid)))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_TABLE),
                 errmsg("table \"%s.kudos_balance_snapshots\" does not exist", kudos_schema),
                 errhint("Create it with the Horde's own migrations; docs/reference/snapshots.md lists its columns.")));
    return quote_qualified_identifier(kudos_schema, "kudos_balance_snapshots");
}

// exclusive: for those that write. The lock comes first, and what they see is taken after it, also
// where the caller's transaction has a fixed snapshot of its own.
Session begin_session(bool exclusive)
{
    Session session{};
    if (exclusive)
        DirectFunctionCall1(pg_advisory_xact_lock_int8, Int64GetDatum(reconciliation_lock));
    if (!lock_extension())
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"kudos_projector\" does not exist"),
                        errhint("CREATE EXTENSION kudos_projector;")));
    session.schema = &current_schema();
    require_restored(*session.schema);
    session.snapshots_name = require_snapshots_table(*session.schema);
    session.acting = act_as_ledger_owner(*session.schema);
    SPI_connect();
    if (!XactReadOnly)
        grant_own_tables(*session.schema);
    return session;
}

void see(Session &session, Snapshot snapshot)
{
    session.snapshot = RegisterSnapshot(snapshot);
}

void end_session(const Session &session)
{
    UnregisterSnapshot(session.snapshot);
    SPI_finish();
    stop_acting(session.acting);
}

void require_writable(const char *command)
{
    PreventCommandIfReadOnly(command);
    PreventCommandIfParallelMode(command);
    PreventCommandDuringRecovery(command);
}

// ---------------------------------------------------------------------------------------------
// kudos_snapshot

void refuse_while_repairing(const Session &session)
{
    const Schema &schema = *session.schema;
    const Rows pending = run_on_unapplied(
        schema,
        psprintf("SELECT (SELECT count(*) FROM %s p WHERE %s AND p.entry_type = 'RECONCILIATION')"
                 " + (SELECT count(*) FROM %s p WHERE %s AND NOT p.quarantined AND p.quarantined IS FALSE"
                 " AND p.detail ? '%s')",
                 schema.ledger_name, unapplied, schema.stat_events_name, unapplied, repair_key),
        session.snapshot);
    if (pending.integer(0, 1) > 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("cannot take a snapshot while a repair is unapplied"),
                        errdetail("%lld rows of a repair are queued.", static_cast<long long>(pending.integer(0, 1))),
                        errhint("Let the projector fold them, or call kudos_fold_now() first.")));
}

// What the sums of the whole archive can start from: null, they cannot.
const char *trusted_base(const Session &session, const Numbering &numbering, const Mark &mark, ArchiveMark *base)
{
    if (!numbering.known())
        return nullptr;
    *base = stored_mark(*session.schema, Archive::ledger, nullptr, numbering.name, session.snapshot);
    if (!base->found || base->mark.id > mark.id)
        return nullptr;
    return distrust(*session.schema, Archive::ledger, *base, session.snapshot) == nullptr ? base->snapshot : nullptr;
}

// The balances of the archive: those of an earlier snapshot, and what was applied since.
void append_currency(StringInfo sql, const Session &session, const Mark &mark, const Mark &base)
{
    appendStringInfo(sql,
                     "currency AS (SELECT CASE WHEN l.escrow THEN 'users.evaluating_kudos' ELSE 'users.kudos' END"
                     " AS target, l.user_id::text AS key, sum(l.amount) AS since_base,"
                     " coalesce(sum(l.amount) FILTER (WHERE l.id > '" INT64_FORMAT "'::int8), 0) AS amount FROM ",
                     mark.id);
    append_rows_since(sql, session.schema->ledger_name, "x.id, x.user_id, x.escrow, x.amount, x.applied, x.entry_type",
                      base, "l");
    appendStringInfoString(sql, " WHERE l.applied AND l.entry_type <> 'RECONCILIATION' GROUP BY l.user_id, l.escrow)");
}

void append_mark_row(StringInfo sql, Archive archive, const Mark &mark, int64 band_start, const char *band,
                     const Numbering &numbering)
{
    appendStringInfo(sql,
                     "('%s', '" INT64_FORMAT "'::int8, '%s'::int8[], '" INT64_FORMAT "'::int8,"
                     " split_part('%s', '/', 1)::int8, split_part('%s', '/', 2)::numeric,"
                     " split_part('%s', '/', 3)::numeric, %s::int8, %s::text)",
                     archive_names[static_cast<int>(archive)], mark.id, mark.open_ids, band_start, band, band, band,
                     numbering.known() ? psprintf("'" INT64_FORMAT "'", numbering.last) : "NULL",
                     numbering.known() ? quote_literal_cstr(numbering.name) : "NULL");
}

// $1: the snapshot's id; $2: UTC now. One statement, so that balances and sums are of one moment.
void append_snapshot(StringInfo sql, const Session &session, const Mark *marks, const char *mark_rows,
                     const char *base_snapshot, const Mark &base)
{
    const Schema &schema = *session.schema;
    const char *values = own_table(schema, "kudos_snapshot_values");
    appendStringInfoString(sql, "WITH ");
    append_standing(sql, schema);
    appendStringInfoString(sql, ", ");
    append_currency(sql, session, marks[static_cast<int>(Archive::ledger)], base);
    appendStringInfoString(sql, ", ");
    append_stat_sums(sql, schema, marks[static_cast<int>(Archive::stat_events)]);
    appendStringInfo(sql,
                     ", base AS (SELECT v.target, v.key, v.counted, v.archived FROM %s v"
                     " WHERE v.snapshot_id = %s AND v.archived IS NOT NULL)",
                     values, base_snapshot != nullptr ? psprintf("'%s'::uuid", base_snapshot) : "NULL::uuid");
    appendStringInfoString(
        sql, ", valued AS MATERIALIZED (SELECT target, key, coalesce(s.value, 0) AS opening,"
             " coalesce(c.amount, 0) AS counted, CASE WHEN target LIKE 'users.%' THEN coalesce(b.archived, 0)"
             " + coalesce(c.since_base, 0) - coalesce(b.counted, 0) END AS archived FROM standing s"
             " FULL JOIN (SELECT target, key, amount, since_base FROM currency"
             " UNION ALL SELECT target, key, amount, NULL FROM stat_sums) c USING (target, key)"
             " LEFT JOIN base b USING (target, key))");
    appendStringInfo(
        sql,
        ", taken AS (INSERT INTO %s (snapshot_id, created) VALUES ($1, $2) RETURNING 1),"
        " marked AS (INSERT INTO %s (snapshot_id, archive, mark, open_ids, band_start, band_rows, band_ids,"
        " band_amount, last_id, numbering) SELECT $1, m.* FROM (VALUES %s) m RETURNING 1),"
        " kept AS (INSERT INTO %s (snapshot_id, target, key, opening, counted, archived)"
        " SELECT $1, v.target, v.key, v.opening, v.counted, v.archived FROM valued v RETURNING 1),",
        own_table(schema, "kudos_snapshots"), own_table(schema, "kudos_snapshot_marks"), mark_rows, values);
    appendStringInfo(sql,
                     " balanced AS (INSERT INTO %s AS b (snapshot_id, user_id, balance, escrow, applied_balance_total,"
                     " applied_escrow_total, created)"
                     " SELECT $1, k.key::int8, k.opening, e.opening, k.archived, e.archived, $2"
                     " FROM valued k JOIN valued e ON e.target = 'users.evaluating_kudos' AND e.key = k.key"
                     " WHERE k.target = 'users.kudos' ORDER BY k.key::int8"
                     " RETURNING b.balance + b.escrow + b.applied_balance_total + b.applied_escrow_total AS total)"
                     " SELECT (SELECT count(*) FROM valued v WHERE v.target = 'users.kudos')"
                     " IS NOT DISTINCT FROM (SELECT count(*) FROM balanced)"
                     " AND (SELECT sum(v.opening + v.archived) FROM valued v WHERE v.target LIKE 'users.%%')"
                     " IS NOT DISTINCT FROM (SELECT sum(b.total) FROM balanced b)",
                     session.snapshots_name);
}

void write_snapshot(const Session &session, const Numbering *numbering, const Mark *marks, const char *base_snapshot,
                    const Mark &base, Datum id)
{
    StringInfoData mark_rows;
    initStringInfo(&mark_rows);
    for (int a = 0; a < archive_count; a++) {
        const auto archive = static_cast<Archive>(a);
        const int64 band_start = band_start_of(marks[a].id);
        const char *band = band_of(*session.schema, archive, marks[a], band_start, session.snapshot);
        appendStringInfoString(&mark_rows, a > 0 ? ", " : "");
        append_mark_row(&mark_rows, archive, marks[a], band_start, band, numbering[a]);
    }
    StringInfoData sql;
    initStringInfo(&sql);
    append_snapshot(&sql, session, marks, mark_rows.data, base_snapshot, base);
    const Oid types[] = {UUIDOID, TIMESTAMPOID};
    const Datum parameters[] = {id, TimestampGetDatum(utc_now())};
    const Rows written = run(sql.data, session.snapshot, false, types, parameters);
    if (!written.boolean(0, 1))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the snapshot could not be written to table %s as intended", session.snapshots_name),
                        errdetail("A trigger, rule or row security of the table changed or skipped rows."),
                        errhint("Let rows of the projector pass.")));
}

Datum take_snapshot(bool full, MemoryContext results)
{
    Session session = begin_session(true);
    Numbering numbering[archive_count];
    bool settled[archive_count];
    for (int a = 0; a < archive_count; a++) {
        numbering[a] = numbering_of(archive_oid(*session.schema, static_cast<Archive>(a)));
        settled[a] = settles(numbering[a]);
    }
    // Only now: what settled is visible to it.
    see(session, GetLatestSnapshot());
    refuse_while_repairing(session);

    Mark marks[archive_count];
    for (int a = 0; a < archive_count; a++) {
        const auto archive = static_cast<Archive>(a);
        if (settled[a]) {
            marks[a].id = numbering[a].last;
        } else if (numbering[a].known()) {
            // What an earlier snapshot found settled is settled for good.
            const ArchiveMark earlier =
                stored_mark(*session.schema, archive, nullptr, numbering[a].name, session.snapshot);
            if (earlier.found && earlier.mark.id <= numbering[a].last)
                marks[a].id = earlier.mark.id;
        }
        marks[a] = with_open_rows(*session.schema, archive, marks[a], session.snapshot);
    }

    ArchiveMark base{};
    const auto ledger = static_cast<int>(Archive::ledger);
    const char *base_snapshot = full ? nullptr : trusted_base(session, numbering[ledger], marks[ledger], &base);
    MemoryContext before = MemoryContextSwitchTo(results);
    const Datum id = DirectFunctionCall1(gen_random_uuid, Datum{0});
    MemoryContextSwitchTo(before);
    write_snapshot(session, numbering, marks, base_snapshot, base_snapshot != nullptr ? base.mark : Mark{}, id);
    end_session(session);
    return id;
}

// ---------------------------------------------------------------------------------------------
// Drift

// What a reconciliation compares with: the marks of the snapshot, or the whole archive.
struct Baseline {
    const char *snapshot_id;
    const char *taken; // naive UTC as text; null where the Horde's table has no rows of it
    bool full;
    ArchiveMark of[archive_count];

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
const char *balances_taken(const Session &session, const char *snapshot_id)
{
    const Rows rows = run(psprintf("SELECT min(b.created)::text FROM %s b WHERE b.snapshot_id = '%s'",
                                   session.snapshots_name, snapshot_id),
                          session.snapshot, true);
    return rows.is_null(0, 1) ? nullptr : copy_text(rows, 0, 1);
}

Baseline baseline_of(const Session &session, Datum snapshot, bool full)
{
    Baseline baseline{};
    baseline.snapshot_id = uuid_text(snapshot);
    baseline.full = full;
    baseline.taken = balances_taken(session, baseline.snapshot_id);
    if (full) {
        if (baseline.taken == nullptr)
            refuse_unknown(baseline.snapshot_id);
        return baseline;
    }
    for (int a = 0; a < archive_count; a++) {
        const auto archive = static_cast<Archive>(a);
        ArchiveMark &stored = baseline.of[a];
        stored = stored_mark(*session.schema, archive, baseline.snapshot_id, nullptr, session.snapshot);
        if (!stored.found && baseline.taken != nullptr)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("snapshot \"%s\" was not taken by kudos_snapshot()", baseline.snapshot_id),
                            errdetail("It holds balances and no mark in the archive."), errhint("%s", snapshot_hint)));
        if (!stored.found)
            refuse_unknown(baseline.snapshot_id);
        const char *problem = distrust(*session.schema, archive, stored, session.snapshot);
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

std::span<Drift> find_drift(const Session &session, const Baseline &baseline)
{
    StringInfoData sql;
    initStringInfo(&sql);
    if (baseline.full)
        append_full_drift(&sql, *session.schema, session.snapshots_name, baseline.snapshot_id);
    else
        append_drift(&sql, *session.schema, baseline.snapshot_id, baseline.ledger(), baseline.stat_events());
    const Rows rows = run(sql.data, session.snapshot, true);
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
    Session session = begin_session(false);
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
        const Rows rows = run(sql.data, session.snapshot, true, types, parameters);
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
    end_session(session);
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
void append_decided(StringInfo sql, const Session &session, const Baseline &baseline)
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

void append_posting(StringInfo sql, const Session &session, const Baseline &baseline)
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

void require_written(const Rows &rows, const Session &session)
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
    Session session = begin_session(true);
    see(session, GetLatestSnapshot());
    const Baseline baseline = baseline_of(session, snapshot, full);
    const std::span<const Drift> drifted = find_drift(session, baseline);
    if (drifted.empty()) {
        end_session(session);
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
    const Rows rows = run(sql.data, session.snapshot, false, types, parameters);
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
    end_session(session);
}

void require_arguments(FunctionCallInfo fcinfo, const char *function, int first)
{
    for (int argument = first; argument < fcinfo->nargs; argument++)
        if (PG_ARGISNULL(argument))
            ereport(ERROR,
                    (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("arguments of %s must not be NULL", function)));
}

} // namespace
} // namespace kudos::server

// kudos_snapshot(full) (contract, section 9): gives the new snapshot's id. Values are exact, in
// kudos, two places. 25006 in a read-only transaction, 55000 while a repair is unapplied or a row
// could not be written as meant, 22003 where a balance does not fit kudos_balance_snapshots.
Datum kudos_entry_snapshot(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_arguments(fcinfo, "kudos_snapshot()", 0);
    require_writable("kudos_snapshot()");
    return take_snapshot(PG_GETARG_BOOL(0), CurrentMemoryContext);
}

// kudos_reconcile(snapshot, full) (contract, section 9): one row a drifted target, drift = actual -
// expected, in kudos. Writes nothing. 42704 for an unknown snapshot, 55000 for one whose window
// can no longer be vouched for.
Datum kudos_entry_reconcile(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_arguments(fcinfo, "kudos_reconcile()", 0);
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
    require_arguments(fcinfo, "kudos_repair()", 0);
    require_writable("kudos_repair()");
    InitMaterializedSRF(fcinfo, 0);
    repair(fcinfo, PG_GETARG_DATUM(0), PG_GETARG_BOOL(1));
    return Datum{0};
}
