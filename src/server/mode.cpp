#include "mode.hpp"

extern "C" {
#include "utils/fmgrprotos.h"
}

#include "cycle.hpp"
#include "entry.h"
#include "session.hpp"
#include "statement.hpp"

namespace kudos::server {
namespace {

Statement read_mode_statement;
Statement write_mode_statement;

void write_read_mode(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql, "SELECT c.mode = 'ledger' FROM %s c WHERE c.id = 1", schema.control_name);
}

void write_write_mode(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS c (id, mode, changed_at) VALUES (1, $1, $2)"
                     " ON CONFLICT (id) DO UPDATE SET mode = excluded.mode, changed_at = excluded.changed_at",
                     schema.control_name);
}

LedgerMode parse_mode(const char *name)
{
    for (const LedgerMode mode : {LedgerMode::shadow, LedgerMode::ledger})
        if (strcmp(name, mode_name(mode)) == 0)
            return mode;
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown mode \"%s\"", name),
                    errhint("The modes are \"shadow\" and \"ledger\".")));
    pg_unreachable();
}

// A row left behind would be folded later, on top of balances that the application keeps by then.
void require_drained(const Schema &schema)
{
    QueuedRows queued{};
    as_ledger_owner(schema, [&](MemoryContext) { queued = count_queued(schema); });
    if (queued.currency + queued.stats > 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the queue could not be drained, so the mode was not changed"),
                        errdetail("%lld currency rows and %lld stat rows are still unapplied: somebody holds them "
                                  "locked, or their targets cannot be written.",
                                  static_cast<long long>(queued.currency), static_cast<long long>(queued.stats)),
                        errhint("kudos_health() names targets that are stuck; try again when they are free.")));
}

// Ledger -> shadow: everything that is queued is folded in this transaction first.
void fold_tail()
{
    Tick *tick = begin_tick(kudos_batch_size, Attempt::optimistic);
    tick->promotes = false;
    for (bool settled = false; !settled;) {
        CHECK_FOR_INTERRUPTS();
        settled = run_cycle(*tick).settled;
    }
    end_tick(tick);
    require_drained(current_schema()); // a cycle may have resolved it anew
}

void store_mode(const Schema &schema, LedgerMode mode)
{
    const Oid types[] = {TEXTOID, TIMESTAMPOID};
    const Datum parameters[] = {CStringGetTextDatum(mode_name(mode)), TimestampGetDatum(utc_now())};
    as_ledger_owner(schema, [&](MemoryContext) {
        write_exactly(prepared(write_mode_statement, schema, write_write_mode, 0, types), parameters, SPI_OK_INSERT, 1,
                      schema.control_name);
    });
}

LedgerMode committed_mode(const Schema &schema, LedgerMode (*read)(const Schema &))
{
    LedgerMode mode = LedgerMode::shadow;
    as_ledger_owner(schema, [&](MemoryContext) { mode = read(schema); });
    return mode;
}

} // namespace

const char *mode_name(LedgerMode mode)
{
    return mode == LedgerMode::ledger ? "ledger" : "shadow";
}

LedgerMode read_mode(const Schema &schema)
{
    const uint64 rows = execute(prepared(read_mode_statement, schema, write_read_mode, 0, {}), {}, SPI_OK_SELECT);
    return rows == 1 && Rows().boolean(0, 1) ? LedgerMode::ledger : LedgerMode::shadow;
}

LedgerMode pin_mode(const Schema &schema)
{
    DirectFunctionCall1(pg_advisory_xact_lock_shared_int8, Int64GetDatum(mode_gate));
    return read_mode(schema);
}

} // namespace kudos::server

Datum kudos_entry_mode(FunctionCallInfo)
{
    using namespace kudos::server;
    PG_RETURN_TEXT_P(cstring_to_text(mode_name(committed_mode(current_schema(), read_mode))));
}

Datum kudos_entry_pin_mode(FunctionCallInfo)
{
    using namespace kudos::server;
    PreventCommandDuringRecovery("kudos_pin_mode()");
    PG_RETURN_TEXT_P(cstring_to_text(mode_name(committed_mode(current_schema(), pin_mode))));
}

Datum kudos_entry_set_mode(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    PreventCommandIfReadOnly("kudos_set_mode()");
    if (PG_ARGISNULL(0))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("mode must not be null"),
                        errhint("The modes are \"shadow\" and \"ledger\".")));
    const LedgerMode mode = parse_mode(text_to_cstring(PG_GETARG_TEXT_PP(0)));
    if (IsolationUsesXactSnapshot())
        ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
                        errmsg("kudos_set_mode() must run in a READ COMMITTED transaction"),
                        errdetail("It has to see what was committed while it waited for its locks."),
                        errhint("BEGIN ISOLATION LEVEL READ COMMITTED;")));
    // In this order, everywhere; both queue fairly, so a stream of pins delays this by one of them.
    DirectFunctionCall1(pg_advisory_xact_lock_int8, Int64GetDatum(applier_lock));
    DirectFunctionCall1(pg_advisory_xact_lock_int8, Int64GetDatum(mode_gate));
    const Schema &schema = current_schema();
    if (committed_mode(schema, read_mode) != mode) {
        if (mode == LedgerMode::shadow)
            fold_tail();
        store_mode(current_schema(), mode);
    }
    PG_RETURN_TEXT_P(cstring_to_text(mode_name(mode)));
}
