// The quarantine desk: look at quarantined events, put one back, or accept its loss (contract, section 4).
// Nothing is deleted; who decided what, and when, is recorded.
#include "pg.hpp"

extern "C" {
#include "funcapi.h"
#include "utils/uuid.h"
}

#include <algorithm>

#include "arguments.hpp"
#include "claim.hpp"
#include "entry.h"
#include "mark.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement list_statement;
Statement requeue_statement;
Statement decide_statement;

const char *decisions_table(const Schema &schema)
{
    return quote_qualified_identifier(schema.extension_schema, "kudos_quarantine_decisions");
}

// One row an event, in the order of the columns of kudos_quarantine.
void write_list(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "SELECT e.event_id, min(e.quarantine_reason)::text, min(e.quarantined_at), count(*), min(e.id)::int8,"
        " min(e.created), array_agg(CASE"
        " WHEN e.record = 'user_kudos' THEN format('user_stats (%%s, %%s) %%s', e.user_id, e.stat_action, e.amount)"
        " WHEN e.record = 'worker_kudos' THEN"
        " format('workers %%s kudos and worker_stats (%%s) %%s', e.worker_id, e.stat_action, e.amount)"
        " WHEN e.entry_type = 'STAT_RECORD' THEN"
        " format('user_records (%%s, %%s, %%s) %%s', e.user_id, e.stat_action, e.record, e.amount)"
        " WHEN e.entry_type = 'STAT_CONTRIBUTION' THEN"
        " format('workers %%s %%s %%s', e.worker_id, e.stat_action, e.amount)"
        " WHEN e.entry_type = 'STAT_ACTIVITY' THEN format('users %%s last_active %%s', e.user_id, e.created)"
        " ELSE format('nothing known: %%s %%s', e.entry_type, e.amount) END ORDER BY e.id),"
        " (SELECT d.note FROM %s d WHERE d.event_id = e.event_id AND d.action = 'accept'"
        " ORDER BY d.id DESC LIMIT 1)"
        " FROM %s e WHERE e.quarantined IS TRUE GROUP BY e.event_id ORDER BY min(e.quarantined_at), 1",
        decisions_table(schema), schema.stat_events_name);
}

void write_requeue(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "UPDATE %s e SET quarantined = false, quarantine_reason = NULL, quarantined_at = NULL"
                     " WHERE e.id = ANY ($1)",
                     schema.stat_events_name);
}

void write_decide(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s (event_id, action, rows, note, decided_by, decided_at)"
                     " VALUES ($1, $2, $3, $4, $5, clock_timestamp())",
                     decisions_table(schema));
}

void record_decision(const Schema &schema, const Uuid &event, const char *action, std::int64_t rows, Datum note,
                     bool has_note, const char *decided_by)
{
    const Oid types[] = {UUIDOID, TEXTOID, INT8OID, TEXTOID, TEXTOID};
    Datum values[] = {uuid_datum(event), CStringGetTextDatum(action), Int64GetDatum(rows), note,
                      CStringGetTextDatum(decided_by)};
    const char nulls[] = {' ', ' ', ' ', has_note ? ' ' : 'n', ' '};
    SPIPlanPtr plan = prepared(decide_statement, schema, write_decide, 0, types);
    write_exactly(plan, values, SPI_OK_INSERT, 1, decisions_table(schema), nulls);
}

std::span<StatPosting> require_quarantined(const Schema &schema, const Uuid &event)
{
    std::span<StatPosting> rows = claim_quarantined_event(schema, event);
    if (rows.empty())
        ereport(ERROR, (errcode(ERRCODE_NO_DATA_FOUND),
                        errmsg("event %s has no quarantined rows",
                               DatumGetCString(DirectFunctionCall1(uuid_out, uuid_datum(event)))),
                        errhint("SELECT event_id FROM kudos_quarantine lists the events that have.")));
    return rows;
}

std::span<std::int64_t> users_of(std::span<const StatPosting> rows)
{
    std::span<std::int64_t> users = allocate<std::int64_t>(rows.size());
    std::size_t count = 0;
    for (const StatPosting &row : rows)
        if (row.has_user)
            users[count++] = row.user;
    users = users.first(count);
    std::sort(users.begin(), users.end());
    return users.first(static_cast<std::size_t>(std::unique(users.begin(), users.end()) - users.begin()));
}

// An event that would be quarantined again stays where it is.
void require_valid_now(const Schema &schema, std::span<const StatPosting> rows)
{
    const std::span<const std::int64_t> existing = lock_existing_users(schema, users_of(rows));
    const ProjectionLimits limits = projection_limits(schema);
    for (const StatPosting &row : rows) {
        const Reason reason = validate(row, existing, limits);
        if (reason == Reason::none)
            continue;
        const std::string_view text = reason_text(reason);
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("the event would be quarantined again"),
                 errdetail("Stat row %lld is still invalid: %.*s.", static_cast<long long>(row.id),
                           static_cast<int>(text.size()), text.data()),
                 errhint("Remove the cause first, or kudos_accept_quarantined() records that the loss is "
                         "accepted.")));
    }
}

void requeue(const Schema &schema, std::span<const StatPosting> rows)
{
    const Oid types[] = {INT8ARRAYOID};
    const Datum parameters[] = {
        array_from(rows, INT8OID, [](const StatPosting &row) { return Int64GetDatum(row.id); })};
    if (execute(prepared(requeue_statement, schema, write_requeue, 0, types), parameters, SPI_OK_UPDATE) != rows.size())
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("not every row could be put back"),
                        errhint("Remove the trigger or rule that keeps rows of table %s from being updated.",
                                schema.stat_events_name)));
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_quarantine(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    InitMaterializedSRF(fcinfo, 0);
    auto *results = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    const Schema &schema = current_schema();
    as_ledger_owner(schema, [&](MemoryContext) {
        if (!XactReadOnly)
            grant_own_tables(schema);
        const SPIPlanPtr plan = prepared(list_statement, schema, write_list, 0, {});
        execute(plan, {}, SPI_OK_SELECT);
        for (uint64 row = 0; row < SPI_processed; row++)
            tuplestore_puttuple(results->setResult, SPI_tuptable->vals[row]);
    });
    return Datum{0};
}

Datum kudos_entry_requeue(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_requeue()");
    require_argument(fcinfo, 0, "event_id");
    const Uuid event = uuid_argument(fcinfo, 0);
    const char *caller = GetUserNameFromId(GetUserId(), false);
    const Schema &schema = current_schema();
    std::int64_t count = 0;
    as_ledger_owner(schema, [&](MemoryContext) {
        grant_own_tables(schema);
        const std::span<const StatPosting> rows = require_quarantined(schema, event);
        require_valid_now(schema, rows);
        requeue(schema, rows);
        count = static_cast<std::int64_t>(rows.size());
        record_decision(schema, event, "requeue", count, Datum{0}, false, caller);
    });
    PG_RETURN_INT64(count);
}

Datum kudos_entry_accept_quarantined(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_accept_quarantined()");
    require_argument(fcinfo, 0, "event_id");
    const Uuid event = uuid_argument(fcinfo, 0);
    if (PG_ARGISNULL(1))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("note must not be null"),
                        errhint("Say why the loss is accepted; it is kept with your name.")));
    const char *caller = GetUserNameFromId(GetUserId(), false);
    const Schema &schema = current_schema();
    std::int64_t count = 0;
    as_ledger_owner(schema, [&](MemoryContext) {
        grant_own_tables(schema);
        count = static_cast<std::int64_t>(require_quarantined(schema, event).size());
        record_decision(schema, event, "accept", count, PG_GETARG_DATUM(1), true, caller);
    });
    PG_RETURN_INT64(count);
}
