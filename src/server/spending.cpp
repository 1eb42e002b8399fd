#include "spending.hpp"

extern "C" {
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"
#include "utils/uuid.h"
}

#include "arguments.hpp"
#include "entry.h"
#include "event_id.hpp"
#include "posting.hpp"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

// The Horde's own key, in the two-int keyspace with the user id.
constexpr int32 payer_lock = 0x4B554452;

Statement account_statement;
Statement find_hold_statement;
Statement store_hold_statement;
Statement release_statement;
Statement find_transfer_statement;
Statement store_transfer_statement;
Statement transfer_row_statement;
Statement transfer_stats_statement;

// One statement, one snapshot: between two, a fold could move a row from the queue to the balance.
void write_account(StringInfo sql, const Schema &schema, int)
{
    const char *active = "h.released_at IS NULL AND h.remaining_amount > 0";
    appendStringInfo(sql,
                     "SELECT u.oauth_id::text, (u.kudos + coalesce(r.kudos, 0) * 0.01)::numeric(40,2)::text,"
                     " (SELECT coalesce(sum(h.remaining_amount), 0) FROM %s h WHERE h.user_id = u.id AND %s)::text,"
                     " q.debits::text, q.total::text"
                     " FROM %s u LEFT JOIN %s r ON r.id = u.id,"
                     " LATERAL (SELECT coalesce(sum(l.amount), 0) AS total,"
                     " coalesce(sum(l.amount) FILTER (WHERE l.amount < 0 AND NOT EXISTS (SELECT FROM %s h"
                     " WHERE jsonb_typeof(l.detail -> 'reservation_id') = 'string'"
                     " AND h.business_id = l.detail ->> 'reservation_id' AND h.user_id = u.id AND %s)), 0) AS debits"
                     " FROM %s l WHERE l.user_id = u.id AND NOT l.escrow AND NOT l.applied AND l.applied IS FALSE) q"
                     " WHERE u.id = $1",
                     schema.reservations_name, active, schema.of(Table::users).name, schema.of(Table::users).remainder,
                     schema.reservations_name, active, schema.ledger_name);
}

void write_find_hold(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "SELECT h.user_id::int8, h.remaining_amount::text, h.released_at IS NULL FROM %s h"
                     " WHERE h.business_id = $1 FOR NO KEY UPDATE OF h",
                     schema.reservations_name);
}

// Inserts the hold, or reactivates one that was released.
void write_store_hold(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS h (id, business_id, user_id, event_id, original_amount, remaining_amount,"
                     " created, released_at) VALUES (gen_random_uuid(), $1, $2, $3, $4::numeric, $4::numeric, $5, NULL)"
                     " ON CONFLICT (business_id) DO UPDATE SET original_amount = excluded.original_amount,"
                     " remaining_amount = excluded.remaining_amount, event_id = excluded.event_id,"
                     " created = excluded.created, released_at = NULL WHERE h.user_id = excluded.user_id",
                     schema.reservations_name);
}

void write_release(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "WITH held AS (SELECT h.id, h.remaining_amount FROM %s h"
                     " WHERE h.business_id = $1 AND h.released_at IS NULL FOR NO KEY UPDATE OF h)"
                     " UPDATE %s h SET remaining_amount = 0, released_at = $2 FROM held WHERE h.id = held.id"
                     " RETURNING held.remaining_amount::text",
                     schema.reservations_name, schema.reservations_name);
}

const char *transfers_table(const Schema &schema)
{
    return quote_qualified_identifier(schema.extension_schema, "kudos_transfer_requests");
}

void write_find_transfer(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "SELECT t.source_id::int8, t.dest_id::int8, t.amount::text FROM %s t WHERE t.event_id = $1",
                     transfers_table(schema));
}

void write_store_transfer(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s (event_id, source_id, dest_id, amount, created)"
                     " VALUES ($1, $2, $3, $4::numeric, $5) ON CONFLICT DO NOTHING",
                     transfers_table(schema));
}

void write_transfer_row(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "INSERT INTO %s (source_id, dest_id, kudos, created) VALUES ($1, $2, round($3::numeric), $4)",
                     schema.transfers_name);
}

void write_transfer_stats(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(
        sql,
        "INSERT INTO %s (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)"
        " VALUES ($5, $1, 'TRANSFER', $2, -($4::numeric), 'kudos', 'gifted', 'user_kudos', false),"
        " ($5, $1, 'TRANSFER', $3, $4::numeric, 'kudos', 'received', 'user_kudos', false)",
        schema.stat_events_name);
}

// ---------------------------------------------------------------------------------------------

Datum numeric_of(Cents cents)
{
    char text[cents_text_size];
    const std::size_t size = format_cents(cents, text);
    return DirectFunctionCall3(numeric_in, CStringGetDatum(pnstrdup(text, size)), ObjectIdGetDatum(InvalidOid),
                               Int32GetDatum(-1));
}

Cents read_cents(const Rows &rows, int column)
{
    Cents value = 0;
    const Parsed parsed = rows.cents(0, column, value);
    if (parsed != Parsed::exact && parsed != Parsed::rounded)
        ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                        errmsg("an amount of the account or of its holds is no finite number of cents"),
                        errhint("Look for NaN in the balance of the account and in remaining_amount of its holds.")));
    return value;
}

Cents positive_amount(FunctionCallInfo fcinfo, int argument)
{
    const Cents amount = amount_argument(fcinfo, argument);
    if (amount <= 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("amount must be greater than 0")));
    return amount;
}

Account account_of(std::int64_t user)
{
    const Schema &schema = current_schema();
    Account account;
    as_ledger_owner(schema, [&](MemoryContext) { account = read_account(schema, user); });
    return account;
}

struct Hold {
    bool exists;
    bool active;
    std::int64_t user;
    Cents remaining;
};

Hold find_hold(const Schema &schema, std::string_view business_id)
{
    const Oid types[] = {TEXTOID};
    const Datum parameters[] = {text_datum(business_id)};
    const uint64 found =
        execute(prepared(find_hold_statement, schema, write_find_hold, 0, types), parameters, SPI_OK_SELECT);
    if (found == 0)
        return {false, false, 0, 0};
    const Rows rows;
    return {true, rows.boolean(0, 3), rows.integer(0, 1), read_cents(rows, 2)};
}

[[noreturn]] void reject_other_payer(std::string_view business_id)
{
    ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                    errmsg("hold \"%.*s\" belongs to another payer", static_cast<int>(business_id.size()),
                           business_id.data())));
    pg_unreachable();
}

// Another payer may have made a hold of this business id since we looked: the payer lock serialises
// one payer's calls only.
void store_hold(const Schema &schema, std::int64_t user, std::string_view business_id, Cents amount, const Uuid *event)
{
    const Oid types[] = {TEXTOID, INT8OID, UUIDOID, TEXTOID, TIMESTAMPOID};
    Datum values[] = {text_datum(business_id), Int64GetDatum(user), event != nullptr ? uuid_datum(*event) : Datum{0},
                      cents_datum(amount), TimestampGetDatum(utc_now())};
    const char nulls[] = {' ', ' ', event != nullptr ? ' ' : 'n', ' ', ' '};
    SPIPlanPtr plan = prepared(store_hold_statement, schema, write_store_hold, 0, types);
    if (execute(plan, values, SPI_OK_INSERT, nulls) == 1)
        return;
    const Hold hold = find_hold(schema, business_id);
    if (hold.exists && hold.user != user)
        reject_other_payer(business_id);
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("the hold was not stored"),
                    errhint("Remove the trigger or rule that keeps rows from table %s.", schema.reservations_name)));
}

// ---------------------------------------------------------------------------------------------
// Transfers

struct Transfer {
    std::int64_t source;
    std::int64_t dest;
    Cents amount;
    Uuid event;
};

// True where the key was used before for the same transfer.
bool is_replay(const Schema &schema, const Transfer &transfer)
{
    const Oid types[] = {UUIDOID};
    const Datum parameters[] = {uuid_datum(transfer.event)};
    if (execute(prepared(find_transfer_statement, schema, write_find_transfer, 0, types), parameters, SPI_OK_SELECT) ==
        0)
        return false;
    const Rows rows;
    if (rows.integer(0, 1) != transfer.source || rows.integer(0, 2) != transfer.dest ||
        read_cents(rows, 3) != transfer.amount)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the idempotency key was used for another transfer"),
                 errhint("A retry must repeat its first parameters; another transfer needs another key.")));
    return true;
}

void record_transfer(const Schema &schema, const Transfer &transfer)
{
    const Datum amount = cents_datum(transfer.amount);
    const Datum now = TimestampGetDatum(utc_now());
    const Datum source = Int64GetDatum(transfer.source);
    const Datum dest = Int64GetDatum(transfer.dest);
    const Datum event = uuid_datum(transfer.event);

    const Oid request_types[] = {UUIDOID, INT8OID, INT8OID, TEXTOID, TIMESTAMPOID};
    const Datum request[] = {event, source, dest, amount, now};
    // Another payer may have used the key since we looked; that is said as it is for an earlier one.
    if (execute(prepared(store_transfer_statement, schema, write_store_transfer, 0, request_types), request,
                SPI_OK_INSERT) == 0 &&
        !is_replay(schema, transfer))
        elog(ERROR, "the transfer was not recorded");

    const Oid row_types[] = {INT8OID, INT8OID, TEXTOID, TIMESTAMPOID};
    const Datum row[] = {source, dest, amount, now};
    write_exactly(prepared(transfer_row_statement, schema, write_transfer_row, 0, row_types), row, SPI_OK_INSERT, 1,
                  schema.transfers_name);

    write_exactly(prepared(transfer_stats_statement, schema, write_transfer_stats, 0, request_types), request,
                  SPI_OK_INSERT, 2, schema.stat_events_name);
}

// Reserve, debit and credit under one event; the debit's own fold consumes the hold.
bool run_transfer(const Schema &schema, const Transfer &transfer)
{
    char business_id[80];
    const char *event = DatumGetCString(DirectFunctionCall1(uuid_out, uuid_datum(transfer.event)));
    snprintf(business_id, sizeof(business_id), "transfer:%ld:%s", static_cast<long>(transfer.source), event);
    if (!reserve(schema, transfer.source, business_id, transfer.amount, &transfer.event).granted)
        return false;
    const NewPosting rows[] = {
        {.event = transfer.event,
         .user = transfer.source,
         .entry_type = "TRANSFER",
         .amount = -transfer.amount,
         .reservation = business_id},
        {.event = transfer.event,
         .user = transfer.dest,
         .entry_type = "TRANSFER",
         .amount = transfer.amount,
         .reservation = {}},
    };
    append_postings(schema, rows);
    record_transfer(schema, transfer);
    return true;
}

} // namespace

Account read_account(const Schema &schema, std::int64_t user)
{
    const Oid types[] = {INT8OID};
    const Datum parameters[] = {Int64GetDatum(user)};
    const int pinned = pin_plans(schema);
    const uint64 found =
        execute(prepared(account_statement, schema, write_account, 0, types), parameters, SPI_OK_SELECT);
    unpin_plans(pinned);
    if (found == 0)
        ereport(ERROR, (errcode(ERRCODE_NO_DATA_FOUND), errmsg("user %ld does not exist", static_cast<long>(user))));
    const Rows rows;
    Account account;
    require_ok(account_floor(rows.text(0, 1), &account.floor));
    account.balance = read_cents(rows, 2);
    account.active_holds = read_cents(rows, 3);
    account.queued_debits = read_cents(rows, 4);
    account.queued = read_cents(rows, 5);
    return account;
}

void lock_payer(std::int64_t user)
{
    DirectFunctionCall2(pg_advisory_xact_lock_int4, Int32GetDatum(payer_lock), Int32GetDatum(static_cast<int32>(user)));
}

Reservation reserve(const Schema &schema, std::int64_t user, std::string_view business_id, Cents amount,
                    const Uuid *event)
{
    lock_payer(user);
    const Hold hold = find_hold(schema, business_id);
    if (hold.exists && hold.user != user)
        reject_other_payer(business_id);
    const Account account = read_account(schema, user);
    if (hold.active)
        return {true, hold.remaining, account.available()};
    if (account.available() < amount)
        return {false, 0, account.available()};
    store_hold(schema, user, business_id, amount, event);
    return {true, amount, account.available() - amount};
}

} // namespace kudos::server

Datum kudos_entry_floor(FunctionCallInfo fcinfo)
{
    return kudos::server::numeric_of(kudos::server::account_of(PG_GETARG_INT32(0)).floor);
}

Datum kudos_entry_available(FunctionCallInfo fcinfo)
{
    return kudos::server::numeric_of(kudos::server::account_of(PG_GETARG_INT32(0)).available());
}

Datum kudos_entry_effective(FunctionCallInfo fcinfo)
{
    return kudos::server::numeric_of(kudos::server::account_of(PG_GETARG_INT32(0)).effective());
}

Datum kudos_entry_reserve(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_reserve()");
    require_argument(fcinfo, 0, "user_id");
    require_argument(fcinfo, 1, "business_id");
    const std::string_view business_id = text_argument(fcinfo, 1);
    const Cents amount = positive_amount(fcinfo, 2);
    const bool has_event = !PG_ARGISNULL(3);
    const Uuid event = has_event ? uuid_argument(fcinfo, 3) : Uuid{};
    const Schema &schema = current_schema();
    Reservation reservation{};
    as_ledger_owner(schema, [&](MemoryContext) {
        reservation = reserve(schema, PG_GETARG_INT32(0), business_id, amount, has_event ? &event : nullptr);
    });
    Datum values[] = {BoolGetDatum(reservation.granted), numeric_of(reservation.reserved),
                      numeric_of(reservation.available)};
    bool nulls[lengthof(values)] = {};
    return result_row(fcinfo, values, nulls);
}

Datum kudos_entry_release(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_release()");
    require_argument(fcinfo, 0, "business_id");
    const std::string_view business_id = text_argument(fcinfo, 0);
    const Schema &schema = current_schema();
    Cents released = 0;
    as_ledger_owner(schema, [&](MemoryContext) {
        const Oid types[] = {TEXTOID, TIMESTAMPOID};
        const Datum parameters[] = {text_datum(business_id), TimestampGetDatum(utc_now())};
        if (execute(prepared(release_statement, schema, write_release, 0, types), parameters,
                    SPI_OK_UPDATE_RETURNING) == 1)
            released = read_cents(Rows(), 1);
    });
    return numeric_of(released);
}

Datum kudos_entry_transfer(FunctionCallInfo fcinfo)
{
    using namespace kudos;
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_transfer()");
    require_argument(fcinfo, 0, "source");
    require_argument(fcinfo, 1, "dest");
    require_argument(fcinfo, 3, "idempotency_key");
    const Transfer transfer{PG_GETARG_INT32(0), PG_GETARG_INT32(1), positive_amount(fcinfo, 2),
                            event_id_of_key(text_argument(fcinfo, 3))};
    if (transfer.source == transfer.dest)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("source and dest of a transfer must differ")));
    const Schema &schema = current_schema();
    bool transferred = false;
    bool replayed = false;
    as_ledger_owner(schema, [&](MemoryContext) {
        grant_own_tables(schema);
        require_ledger_mode(schema, "kudos_transfer()");
        lock_payer(transfer.source);
        (void)read_account(schema, transfer.dest); // exists?
        replayed = is_replay(schema, transfer);
        transferred = replayed || run_transfer(schema, transfer);
    });
    Datum values[] = {BoolGetDatum(transferred), BoolGetDatum(replayed), uuid_datum(transfer.event)};
    bool nulls[lengthof(values)] = {};
    return result_row(fcinfo, values, nulls);
}
