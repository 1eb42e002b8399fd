#include "snapshots.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "tcop/utility.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"
}

#include "entry.h"
#include "settled_ids.hpp"

namespace kudos::server {
namespace {

// The Horde's own key, "KURECO": its reconciliation and ours exclude each other.
constexpr int64 reconciliation_lock = 0x4B55445245434F;

// A snapshot names the rows that were open below its mark, up to so many; with more, the mark goes down.
constexpr int max_open_rows = 10000;

// So many ids below the mark are counted again by every reconciliation.
constexpr int64 band_width = 10000;

const char *require_balances_table()
{
    const Oid namespace_oid = get_namespace_oid(kudos_schema, false);
    if (!OidIsValid(get_relname_relid("kudos_balance_snapshots", namespace_oid)))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_TABLE),
                 errmsg("table \"%s.kudos_balance_snapshots\" does not exist", kudos_schema),
                 errhint("Create it with the Horde's own migrations; docs/reference/snapshots.md lists its columns.")));
    return quote_qualified_identifier(kudos_schema, "kudos_balance_snapshots");
}

StoredMark stored_mark(const SnapshotSession &session, Archive archive, const char *condition)
{
    StoredMark stored{};
    const Rows rows =
        run(session, psprintf("SELECT m.snapshot_id::text, m.mark, m.open_ids::text, m.band_start,"
                              " m.band_rows || '/' || m.band_ids || '/' || m.band_amount, m.last_id::text"
                              " FROM %s m JOIN %s s ON s.snapshot_id = m.snapshot_id"
                              " WHERE m.archive = '%s' AND %s ORDER BY m.mark DESC, s.created DESC LIMIT 1",
                              own_table(*session.schema, "kudos_snapshot_marks"),
                              own_table(*session.schema, "kudos_snapshots"), archive_name(archive), condition));
    if (rows.count() == 0)
        return stored;
    stored.found = true;
    stored.snapshot_id = copy_text(rows, 0, 1);
    stored.mark.id = rows.integer(0, 2);
    stored.mark.open_ids = copy_text(rows, 0, 3);
    stored.band_start = rows.integer(0, 4);
    stored.band = copy_text(rows, 0, 5);
    stored.last_id = rows.is_null(0, 6) ? nullptr : copy_text(rows, 0, 6);
    return stored;
}

} // namespace

// ---------------------------------------------------------------------------------------------
// A call

void require_arguments(FunctionCallInfo fcinfo, const char *function)
{
    for (int argument = 0; argument < fcinfo->nargs; argument++)
        if (PG_ARGISNULL(argument))
            ereport(ERROR,
                    (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("arguments of %s must not be NULL", function)));
}

void lock_reconciliation(const char *function)
{
    PreventCommandIfReadOnly(function);
    PreventCommandIfParallelMode(function);
    PreventCommandDuringRecovery(function);
    DirectFunctionCall1(pg_advisory_xact_lock_int8, Int64GetDatum(reconciliation_lock));
}

SnapshotSession begin_snapshot_session()
{
    SnapshotSession session{};
    if (!lock_extension())
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"kudos_projector\" does not exist"),
                        errhint("CREATE EXTENSION kudos_projector;")));
    session.schema = &current_schema();
    require_restored(*session.schema);
    session.balances_name = require_balances_table();
    session.acting = act_as_ledger_owner(*session.schema);
    keep_ledger_owner(*session.schema);
    SPI_connect();
    if (!XactReadOnly)
        grant_own_tables(*session.schema);
    return session;
}

void see(SnapshotSession &session, Snapshot snapshot)
{
    session.snapshot = RegisterSnapshot(snapshot);
}

void end_snapshot_session(const SnapshotSession &session)
{
    UnregisterSnapshot(session.snapshot);
    SPI_finish();
    stop_acting(session.acting);
}

Rows run(const SnapshotSession &session, const char *sql, bool read_only, std::span<const Oid> types,
         std::span<const Datum> parameters)
{
    SPIPlanPtr plan = SPI_prepare(sql, static_cast<int>(types.size()), const_cast<Oid *>(types.data()));
    if (plan == nullptr)
        elog(ERROR, "could not prepare \"%s\": %s", sql, SPI_result_code_string(SPI_result));
    const int settings = NewGUCNestLevel();
    const int code = SPI_execute_snapshot(plan, const_cast<Datum *>(parameters.data()), nullptr, session.snapshot,
                                          InvalidSnapshot, read_only, true, 0);
    AtEOXact_GUC(false, settings); // what a trigger set, as in execute()
    if (code != SPI_OK_SELECT)
        elog(ERROR, "unexpected result of a snapshot's statement: %s", SPI_result_code_string(code));
    return Rows();
}

Rows run_on_unapplied(const SnapshotSession &session, const char *sql)
{
    const int pinned = pin_plans(*session.schema);
    const Rows rows = run(session, sql);
    unpin_plans(pinned);
    return rows;
}

char *copy_text(const Rows &rows, uint64 row, int column)
{
    const std::string_view text = rows.text(row, column);
    return pnstrdup(text.data(), text.size());
}

const char *own_table(const Schema &schema, const char *table)
{
    return quote_qualified_identifier(schema.extension_schema, table);
}

const char *archive_table(const Schema &schema, Archive archive)
{
    return archive == Archive::ledger ? schema.ledger_name : schema.stat_events_name;
}

Oid archive_oid(const Schema &schema, Archive archive)
{
    return archive == Archive::ledger ? schema.ledger : schema.stat_events;
}

const char *archive_name(Archive archive)
{
    return archive == Archive::ledger ? "kudos_ledger" : "kudos_stat_events";
}

// ---------------------------------------------------------------------------------------------
// Marks

StoredMark mark_of_snapshot(const SnapshotSession &session, Archive archive, const char *snapshot_id)
{
    return stored_mark(session, archive, psprintf("m.snapshot_id = '%s'", snapshot_id));
}

StoredMark highest_mark(const SnapshotSession &session, Archive archive, const char *numbering, int64 at_most)
{
    return stored_mark(session, archive,
                       psprintf("m.numbering = '%s' AND m.mark <= '" INT64_FORMAT "'::int8", numbering, at_most));
}

const char *band_of(const SnapshotSession &session, Archive archive, const Mark &mark, int64 band_start)
{
    const Rows band =
        run(session,
            psprintf("SELECT count(*) || '/' || coalesce(sum(p.id::numeric), 0) || '/' || coalesce(sum(p.amount), 0)"
                     " FROM %s p WHERE p.id > '" INT64_FORMAT "'::int8 AND p.id <= '" INT64_FORMAT "'::int8"
                     " AND p.applied AND p.id <> ALL ('%s'::int8[])",
                     archive_table(*session.schema, archive), band_start, mark.id, mark.open_ids));
    return copy_text(band, 0, 1);
}

const char *distrust(const SnapshotSession &session, Archive archive, const StoredMark &stored)
{
    const Mark &mark = stored.mark;
    const char *table = archive_table(*session.schema, archive);
    const Numbering numbering = numbering_of(archive_oid(*session.schema, archive));
    if (numbering.known() && stored.last_id != nullptr && numbering.last < mark.id)
        return psprintf("Ids of %s begin anew: the last one given out is " INT64_FORMAT
                        ", the snapshot's mark is " INT64_FORMAT ".",
                        table, numbering.last, mark.id);
    const Rows appeared = run_on_unapplied(
        session, psprintf("SELECT count(*), min(p.id)::int8 FROM %s p WHERE %s AND p.id <= '" INT64_FORMAT "'::int8"
                          " AND p.id <> ALL ('%s'::int8[])",
                          table, unapplied, mark.id, mark.open_ids));
    if (appeared.integer(0, 1) > 0)
        return psprintf(INT64_FORMAT " rows of %s up to the snapshot's mark " INT64_FORMAT
                                     " are unapplied that were applied or not there, the first with id " INT64_FORMAT
                                     ".",
                        appeared.integer(0, 1), table, mark.id, appeared.integer(0, 2));
    const Rows gone = run(session, psprintf("SELECT (cardinality('%s'::int8[])"
                                            " - (SELECT count(*) FROM %s p WHERE p.id = ANY ('%s'::int8[])))::int8",
                                            mark.open_ids, table, mark.open_ids));
    if (gone.integer(0, 1) != 0)
        return psprintf(INT64_FORMAT " rows of %s that were queued when the snapshot was taken are gone.",
                        gone.integer(0, 1), table);
    const char *band = band_of(session, archive, mark, stored.band_start);
    if (strcmp(band, stored.band) != 0)
        return psprintf("Applied rows of %s with ids from " INT64_FORMAT " to " INT64_FORMAT
                        " have changed: rows, sum of ids and sum of amounts are %s, and were %s.",
                        table, stored.band_start, mark.id, band, stored.band);
    return nullptr;
}

// ---------------------------------------------------------------------------------------------
// kudos_snapshot

namespace {

// Lowers the mark until no more rows are open below it than a snapshot can name, and names them.
Mark with_open_rows(const SnapshotSession &session, Archive archive, Mark mark)
{
    const char *table = archive_table(*session.schema, archive);
    const Rows beyond =
        run_on_unapplied(session, psprintf("SELECT p.id::int8 FROM %s p WHERE %s AND p.id <= '" INT64_FORMAT "'::int8"
                                           " ORDER BY p.id OFFSET %d LIMIT 1",
                                           table, unapplied, mark.id, max_open_rows));
    if (beyond.count() > 0)
        mark.id = beyond.integer(0, 1) - 1;
    const Rows open =
        run_on_unapplied(session, psprintf("SELECT coalesce(array_agg(p.id::int8 ORDER BY p.id), '{}')::text FROM %s p"
                                           " WHERE %s AND p.id <= '" INT64_FORMAT "'::int8",
                                           table, unapplied, mark.id));
    mark.open_ids = copy_text(open, 0, 1);
    return mark;
}

// What an earlier snapshot found settled is settled for good; nothing is where nobody can tell.
Mark choose_mark(const SnapshotSession &session, Archive archive, const Numbering &numbering, bool settled)
{
    Mark mark;
    if (settled) {
        mark.id = numbering.last;
    } else if (numbering.known()) {
        const StoredMark earlier = highest_mark(session, archive, numbering.name, numbering.last);
        if (earlier.found)
            mark.id = earlier.mark.id;
    }
    return with_open_rows(session, archive, mark);
}

int64 band_start_of(int64 mark)
{
    return mark < PG_INT64_MIN + band_width ? PG_INT64_MIN : mark - band_width;
}

void refuse_while_repairing(const SnapshotSession &session)
{
    const Schema &schema = *session.schema;
    const Rows pending = run_on_unapplied(
        session, psprintf("SELECT (SELECT count(*) FROM %s p WHERE %s AND p.entry_type = 'RECONCILIATION')"
                          " + (SELECT count(*) FROM %s p WHERE %s AND NOT p.quarantined AND p.quarantined IS FALSE"
                          " AND p.detail ? '%s')",
                          schema.ledger_name, unapplied, schema.stat_events_name, unapplied, repair_key));
    if (pending.integer(0, 1) > 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("cannot take a snapshot while a repair is unapplied"),
                        errdetail("%lld rows of a repair are queued.", static_cast<long long>(pending.integer(0, 1))),
                        errhint("Let the projector fold them, or call kudos_fold_now() first.")));
}

// What the sums of the whole archive can start from: null, they cannot.
const char *trusted_base(const SnapshotSession &session, const Numbering &numbering, const Mark &mark, StoredMark *base)
{
    if (!numbering.known())
        return nullptr;
    *base = highest_mark(session, Archive::ledger, numbering.name, mark.id);
    return base->found && distrust(session, Archive::ledger, *base) == nullptr ? base->snapshot_id : nullptr;
}

// The balances of the archive: those of an earlier snapshot, and what was applied since.
void append_currency(StringInfo sql, const SnapshotSession &session, const Mark &mark, const Mark &base)
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
                     archive_name(archive), mark.id, mark.open_ids, band_start, band, band, band,
                     numbering.known() ? psprintf("'" INT64_FORMAT "'", numbering.last) : "NULL",
                     numbering.known() ? quote_literal_cstr(numbering.name) : "NULL");
}

// $1: the snapshot's id; $2: UTC now. One statement, so that balances and sums are of one moment.
void append_snapshot(StringInfo sql, const SnapshotSession &session, const Mark *marks, const char *mark_rows,
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
                     session.balances_name);
}

void write_snapshot(const SnapshotSession &session, const Numbering *numbering, const Mark *marks,
                    const char *base_snapshot, const Mark &base, Datum id)
{
    StringInfoData mark_rows;
    initStringInfo(&mark_rows);
    for (int a = 0; a < archive_count; a++) {
        const auto archive = static_cast<Archive>(a);
        const int64 band_start = band_start_of(marks[a].id);
        const char *band = band_of(session, archive, marks[a], band_start);
        appendStringInfoString(&mark_rows, a > 0 ? ", " : "");
        append_mark_row(&mark_rows, archive, marks[a], band_start, band, numbering[a]);
    }
    StringInfoData sql;
    initStringInfo(&sql);
    append_snapshot(&sql, session, marks, mark_rows.data, base_snapshot, base);
    const Oid types[] = {UUIDOID, TIMESTAMPOID};
    const Datum parameters[] = {id, TimestampGetDatum(utc_now())};
    const Rows written = run(session, sql.data, false, types, parameters);
    if (!written.boolean(0, 1))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the snapshot could not be written to table %s as intended", session.balances_name),
                        errdetail("A trigger, rule or row security of the table changed or skipped rows."),
                        errhint("Let rows of the projector pass.")));
}

Datum take_snapshot(bool full, MemoryContext results)
{
    SnapshotSession session = begin_snapshot_session();
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
    for (int a = 0; a < archive_count; a++)
        marks[a] = choose_mark(session, static_cast<Archive>(a), numbering[a], settled[a]);

    StoredMark base{};
    const auto ledger = static_cast<int>(Archive::ledger);
    const char *base_snapshot = full ? nullptr : trusted_base(session, numbering[ledger], marks[ledger], &base);
    MemoryContext before = MemoryContextSwitchTo(results);
    const Datum id = DirectFunctionCall1(gen_random_uuid, Datum{0});
    MemoryContextSwitchTo(before);
    write_snapshot(session, numbering, marks, base_snapshot, base_snapshot != nullptr ? base.mark : Mark{}, id);
    end_snapshot_session(session);
    return id;
}

} // namespace
} // namespace kudos::server

// kudos_snapshot(full) (contract, section 9): gives the new snapshot's id. Values are exact, in
// kudos, two places. 25006 in a read-only transaction, 55000 while a repair is unapplied or a row
// could not be written as meant, 22003 where a balance does not fit kudos_balance_snapshots.
Datum kudos_entry_snapshot(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_arguments(fcinfo, "kudos_snapshot()");
    lock_reconciliation("kudos_snapshot()");
    return take_snapshot(PG_GETARG_BOOL(0), CurrentMemoryContext);
}
