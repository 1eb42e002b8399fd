#include "posting.hpp"

extern "C" {
#include "mb/pg_wchar.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"
}

#include "arguments.hpp"
#include "entry.h"
#include "event_id.hpp"
#include "mark.hpp"
#include "mode.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement append_statement;
Statement post_statement;
Statement post_stat_statement;
Statement user_exists_statement;

void write_append(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "INSERT INTO %s (created, event_id, entry_type, user_id, escrow, amount, applied, detail)"
        " SELECT $7, k.event_id, k.entry_type, k.user_id, k.escrow, k.amount::numeric, false,"
        " CASE WHEN k.reservation <> '' THEN jsonb_build_object('reservation_id', k.reservation) END"
        " FROM unnest($1::uuid[], $2::text[], $3::int8[], $4::bool[], $5::text[], $6::text[])"
        " WITH ORDINALITY k(event_id, entry_type, user_id, escrow, amount, reservation, ord) ORDER BY k.ord",
        schema.ledger_name);
}

void write_post(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS l (created, event_id, entry_type, user_id, escrow, amount, applied, detail,"
                     " job_id, wp_type) VALUES ($1, $2, $3, $4, $5, $6, false, $7, $8, $9) RETURNING l.id::int8",
                     schema.ledger_name);
}

void write_post_stat(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS e (created, event_id, entry_type, user_id, worker_id, worker_user_id, team_id,"
                     " amount, unit, stat_action, record, applied, detail, job_id, wp_type)"
                     " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, false, $12, $13, $14)"
                     " RETURNING e.id::int8",
                     schema.stat_events_name);
}

void write_user_exists(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "SELECT u.id FROM %s u WHERE u.id = $1 FOR KEY SHARE OF u", schema.of(Table::users).name);
}

// ---------------------------------------------------------------------------------------------
// Arguments

// Given, derived from the idempotency key, or new; in this order.
Uuid event_argument(FunctionCallInfo fcinfo, int event, int key)
{
    if (!PG_ARGISNULL(event) && !PG_ARGISNULL(key))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("event_id and idempotency_key must not both be given"),
                        errhint("The event id is derived from the key.")));
    if (!PG_ARGISNULL(key))
        return event_id_of_key(text_argument(fcinfo, key));
    if (!PG_ARGISNULL(event))
        return uuid_argument(fcinfo, event);
    Uuid id;
    memcpy(id.bytes.data(), DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, Datum{0}))->data, UUID_LEN);
    return id;
}

Datum created_argument(FunctionCallInfo fcinfo, int argument)
{
    return PG_ARGISNULL(argument) ? TimestampGetDatum(utc_now()) : PG_GETARG_DATUM(argument);
}

Datum posted_row(FunctionCallInfo fcinfo, const Uuid &event, std::int64_t id)
{
    Datum values[] = {uuid_datum(event), Int64GetDatum(id)};
    bool nulls[lengthof(values)] = {};
    return result_row(fcinfo, values, nulls);
}

// ---------------------------------------------------------------------------------------------
// Dimensions

bool user_exists(const Schema &schema, std::int64_t user)
{
    const Oid types[] = {INT8OID};
    const Datum parameters[] = {Int64GetDatum(user)};
    return execute(prepared(user_exists_statement, schema, write_user_exists, 0, types), parameters, SPI_OK_SELECT) ==
           1;
}

StatPosting stat_arguments(FunctionCallInfo fcinfo)
{
    StatPosting row;
    row.entry_type = text_argument(fcinfo, 0);
    row.amount = amount_argument(fcinfo, 1);
    row.unit = text_argument(fcinfo, 2);
    row.has_user = !PG_ARGISNULL(3);
    row.user = row.has_user ? PG_GETARG_INT32(3) : 0;
    row.has_worker = !PG_ARGISNULL(4);
    row.has_team = !PG_ARGISNULL(6);
    row.has_action = !PG_ARGISNULL(7);
    row.action = text_argument(fcinfo, 7);
    row.action_length = pg_mbstrlen_with_len(row.action.data(), static_cast<int>(row.action.size()));
    row.has_record = !PG_ARGISNULL(8);
    row.record = text_argument(fcinfo, 8);
    row.record_length = pg_mbstrlen_with_len(row.record.data(), static_cast<int>(row.record.size()));
    return row;
}

// A row that can never be folded is refused here rather than quarantined later.
void require_projectable(const Schema &schema, StatPosting &row, bool touches)
{
    row.touches = touches;
    const bool exists = row.has_user && user_exists(schema, row.user);
    const std::int64_t users[] = {row.user};
    const Reason reason = validate(row, std::span(users).first(exists ? 1 : 0), projection_limits(schema));
    if (reason != Reason::none) {
        const std::string_view text = reason_text(reason);
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the stat row could never be folded"),
                        errdetail("It would be quarantined as %.*s.", static_cast<int>(text.size()), text.data())));
    }
}

bool is_truthy_touch(FunctionCallInfo fcinfo, int argument)
{
    if (PG_ARGISNULL(argument))
        return false;
    const Oid types[] = {JSONBOID};
    Datum parameters[] = {PG_GETARG_DATUM(argument)};
    if (SPI_execute_with_args("SELECT coalesce($1 -> 'touch_last_active' NOT IN"
                              " ('null', 'false', '0', '\"\"', '[]', '{}'), false)",
                              1, const_cast<Oid *>(types), parameters, nullptr, true, 1) != SPI_OK_SELECT)
        elog(ERROR, "could not read detail");
    return Rows().boolean(0, 1);
}

std::int64_t insert_returning_id(SPIPlanPtr plan, std::span<const Datum> values, const char *nulls, const char *table)
{
    write_exactly(plan, values, SPI_OK_INSERT_RETURNING, 1, table, nulls);
    return Rows().integer(0, 1);
}

} // namespace

Cents amount_argument(FunctionCallInfo fcinfo, int argument)
{
    require_argument(fcinfo, argument, "amount");
    const char *text = DatumGetCString(DirectFunctionCall1(numeric_out, PG_GETARG_DATUM(argument)));
    Cents amount = 0;
    if (parse_cents(text, amount) != Parsed::exact || amount > highest_posting || amount < -highest_posting)
        ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE), errmsg("amount %s cannot be posted", text),
                        errdetail("Amounts are numeric(20,2): finite, with at most two decimal places.")));
    return amount;
}

void require_ledger_mode(const Schema &schema, const char *caller)
{
    if (pin_mode(schema) != LedgerMode::ledger)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("%s cannot post in shadow mode", caller),
                 errdetail("In shadow mode the application owns the balances and writes them inline."),
                 errhint("SELECT kudos_set_mode('ledger') hands them to the projector.")));
}

void append_postings(const Schema &schema, std::span<const NewPosting> rows)
{
    const Oid types[] = {UUIDARRAYOID, TEXTARRAYOID, INT8ARRAYOID, BOOLARRAYOID,
                         TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPOID};
    const Datum parameters[] = {
        array_from(rows, UUIDOID, [](const NewPosting &row) { return uuid_datum(row.event); }),
        array_from(rows, TEXTOID, [](const NewPosting &row) { return text_datum(row.entry_type); }),
        array_from(rows, INT8OID, [](const NewPosting &row) { return Int64GetDatum(row.user); }),
        array_from(rows, BOOLOID, [](const NewPosting &row) { return BoolGetDatum(row.escrow); }),
        array_from(rows, TEXTOID, [](const NewPosting &row) { return cents_datum(row.amount); }),
        array_from(rows, TEXTOID, [](const NewPosting &row) { return text_datum(row.reservation); }),
        TimestampGetDatum(utc_now()),
    };
    write_exactly(prepared(append_statement, schema, write_append, 0, types), parameters, SPI_OK_INSERT, rows.size(),
                  schema.ledger_name);
}

} // namespace kudos::server

// kudos_post(user_id, amount, entry_type, escrow, event_id, idempotency_key, detail, job_id, wp_type, created)
Datum kudos_entry_post(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_post()");
    require_argument(fcinfo, 0, "user_id");
    require_argument(fcinfo, 2, "entry_type");
    require_argument(fcinfo, 3, "escrow");
    (void)amount_argument(fcinfo, 1);
    const Uuid event = event_argument(fcinfo, 4, 5);
    const Schema &schema = current_schema();
    std::int64_t id = 0;
    as_ledger_owner(schema, [&](MemoryContext) {
        require_ledger_mode(schema, "kudos_post()");
        const Oid types[] = {TIMESTAMPOID, UUIDOID, TEXTOID, INT8OID, BOOLOID, NUMERICOID, JSONBOID, UUIDOID, TEXTOID};
        Datum values[] = {
            created_argument(fcinfo, 9), uuid_datum(event),  PG_GETARG_DATUM(2), Int64GetDatum(PG_GETARG_INT32(0)),
            PG_GETARG_DATUM(3),          PG_GETARG_DATUM(1), PG_GETARG_DATUM(6), PG_GETARG_DATUM(7),
            PG_GETARG_DATUM(8)};
        char nulls[] = "         ";
        for (int i = 6; i < 9; i++)
            nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
        id = insert_returning_id(prepared(post_statement, schema, write_post, 0, types), values, nulls,
                                 schema.ledger_name);
    });
    return posted_row(fcinfo, event, id);
}

// kudos_post_stat(entry_type, amount, unit, user_id, worker_id, worker_user_id, team_id, stat_action, record,
// event_id, idempotency_key, detail, job_id, wp_type, created)
Datum kudos_entry_post_stat(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_post_stat()");
    require_argument(fcinfo, 0, "entry_type");
    require_argument(fcinfo, 2, "unit");
    if (PG_ARGISNULL(3) == PG_ARGISNULL(4))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("exactly one of user_id and worker_id must be given")));
    const Uuid event = event_argument(fcinfo, 9, 10);
    StatPosting row = stat_arguments(fcinfo);
    const Schema &schema = current_schema();
    std::int64_t id = 0;
    as_ledger_owner(schema, [&](MemoryContext) {
        require_ledger_mode(schema, "kudos_post_stat()");
        require_projectable(schema, row, is_truthy_touch(fcinfo, 11));
        const Oid types[] = {TIMESTAMPOID, UUIDOID, TEXTOID, INT8OID, UUIDOID,  INT8OID, UUIDOID,
                             NUMERICOID,   TEXTOID, TEXTOID, TEXTOID, JSONBOID, UUIDOID, TEXTOID};
        constexpr int from_argument[] = {-1, -1, 0, -1, 4, -1, 6, 1, 2, 7, 8, 11, 12, 13};
        Datum values[lengthof(types)];
        char nulls[lengthof(types)];
        for (Size i = 0; i < lengthof(types); i++) {
            const int argument = from_argument[i];
            nulls[i] = argument >= 0 && PG_ARGISNULL(argument) ? 'n' : ' ';
            values[i] = argument >= 0 ? PG_GETARG_DATUM(argument) : Datum{0};
        }
        values[0] = created_argument(fcinfo, 14);
        values[1] = uuid_datum(event);
        for (const int user : {3, 5}) {
            nulls[user] = PG_ARGISNULL(user) ? 'n' : ' ';
            values[user] = Int64GetDatum(PG_ARGISNULL(user) ? 0 : PG_GETARG_INT32(user));
        }
        id = insert_returning_id(prepared(post_stat_statement, schema, write_post_stat, 0, types), values, nulls,
                                 schema.stat_events_name);
    });
    return posted_row(fcinfo, event, id);
}
