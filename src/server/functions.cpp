// The SQL functions of contract section 11 that fold: kudos_fold_now() and kudos_catch_up().
#include "pg.hpp"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "portability/instr_time.h"
#include "tcop/utility.h"
#include "utils/snapmgr.h"
}

#include "arguments.hpp"
#include "cycle.hpp"
#include "entry.h"
#include "failpoint.hpp"
#include "session.hpp"
#include "stuck.hpp"

namespace kudos::server {
namespace {

struct Totals {
    bool lock_acquired;
    bool settled;
    int32 cycles;
    int64 currency_rows;
    int64 stat_rows;
    int64 quarantined_rows;
    int64 floor_adjustments;
    int64 promoted_users;
    int64 drained_users;

    int64 rows() const { return currency_rows + stat_rows + quarantined_rows; }
    void add(const CycleResult &result)
    {
        lock_acquired = lock_acquired || result.lock_acquired;
        settled = result.settled;
        cycles++;
        currency_rows += result.currency_rows;
        stat_rows += result.stat_rows;
        quarantined_rows += result.quarantined_rows;
        floor_adjustments += result.floor_adjustments;
        promoted_users += result.promoted_users;
        drained_users += result.drained_users;
    }
};
static_assert(jump_safe<Totals>);

int32 argument_in_range(FunctionCallInfo fcinfo, int argument, const char *name, int fallback, int lowest, int highest)
{
    if (PG_ARGISNULL(argument))
        return fallback;
    const int32 value = PG_GETARG_INT32(argument);
    if (value < lowest || value > highest)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s must be between %d and %d, not %d", name, lowest, highest, value),
                        errhint("Leave it out, or give NULL, to use the setting.")));
    return value;
}

void require_writable(const char *command)
{
    PreventCommandIfReadOnly(command);
    PreventCommandIfParallelMode(command);
    PreventCommandDuringRecovery(command);
}

void require_extension(const CycleResult &result)
{
    if (result.extension_missing)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"kudos_projector\" does not exist"),
                        errhint("CREATE EXTENSION kudos_projector;")));
}

// Who folds by hand has no other way to see it where no worker runs.
void warn_of_stuck(const Tick &tick)
{
    const int count = count_stuck(tick);
    if (count == 0)
        return;
    char first[stuck_size];
    describe_stuck(tick, 0, first, sizeof(first));
    ereport(WARNING, (errmsg_plural("rows of %d target stay unapplied", "rows of %d targets stay unapplied",
                                    static_cast<unsigned long>(count), count),
                      errdetail("The first is %s.", first)));
}

Totals fold_in_callers_transaction(int batch_size, int max_cycles)
{
    Totals totals{};
    Tick *tick = begin_tick(batch_size, Attempt::optimistic);
    while (totals.cycles < max_cycles) {
        CHECK_FOR_INTERRUPTS();
        const CycleResult result = run_cycle(*tick);
        require_extension(result);
        if (!result.lock_acquired)
            break;
        totals.add(result);
        if (result.settled)
            break;
    }
    warn_of_stuck(*tick);
    end_tick(tick);
    return totals;
}

Datum totals_row(FunctionCallInfo fcinfo, const Totals &totals, double elapsed_ms)
{
    Datum values[] = {BoolGetDatum(totals.lock_acquired),     Int32GetDatum(totals.cycles),
                      Int64GetDatum(totals.currency_rows),    Int64GetDatum(totals.stat_rows),
                      Int64GetDatum(totals.quarantined_rows), Int64GetDatum(totals.floor_adjustments),
                      Int64GetDatum(totals.promoted_users),   Int64GetDatum(totals.drained_users),
                      BoolGetDatum(totals.settled),           Float8GetDatum(elapsed_ms)};
    bool nulls[lengthof(values)] = {};
    return result_row(fcinfo, values, nulls);
}

double milliseconds_since(instr_time start)
{
    instr_time now;
    INSTR_TIME_SET_CURRENT(now);
    INSTR_TIME_SUBTRACT(now, start);
    return INSTR_TIME_GET_MILLISEC(now);
}

// ---------------------------------------------------------------------------------------------
// kudos_catch_up

constexpr double notice_every_ms = 2000;

int64 queued_rows()
{
    const Schema &schema = current_schema();
    QueuedRows queued{};
    as_ledger_owner(schema, [&](MemoryContext) { queued = count_queued(schema); });
    return queued.currency + queued.stats;
}

void notice_progress(const Totals &totals, int64 queued, double elapsed_ms)
{
    const double rate = elapsed_ms > 0 ? static_cast<double>(totals.rows()) * 1000 / elapsed_ms : 0;
    const int64 left = queued > totals.rows() ? queued - totals.rows() : 0;
    if (rate > 0)
        ereport(NOTICE, (errmsg("%lld rows folded, about %lld left, %.0f rows/s, about %.0f s to go",
                                static_cast<long long>(totals.rows()), static_cast<long long>(left), rate,
                                static_cast<double>(left) / rate)));
}

void notice_end(const Totals &totals, double elapsed_ms)
{
    if (totals.cycles == 0)
        ereport(NOTICE, (errmsg("another projector holds the applier lock; nothing was folded"),
                         errhint("Try again, or let that one go on.")));
    else
        ereport(NOTICE,
                (errmsg("%lld rows folded in %d cycles and %.1f s, %s", static_cast<long long>(totals.rows()),
                        totals.cycles, elapsed_ms / 1000, totals.settled ? "the queue is settled" : "more is queued")));
}

// One transaction a cycle: what is committed stays when the call is cancelled.
void catch_up(int max_cycles)
{
    instr_time start;
    INSTR_TIME_SET_CURRENT(start);
    const int64 queued = queued_rows();
    Totals totals{};
    double noticed_ms = 0;
    Tick *tick = begin_tick(kudos_batch_size, Attempt::optimistic);
    tick->owns_transaction = true;
    while (max_cycles == 0 || totals.cycles < max_cycles) {
        CHECK_FOR_INTERRUPTS();
        const CycleResult result = run_cycle(*tick);
        require_extension(result);
        failpoint("cycle_ended");
        SPI_commit();
        failpoint("cycle_committed");
        if (!result.lock_acquired)
            break;
        totals.add(result);
        if (result.settled)
            break;
        const double elapsed_ms = milliseconds_since(start);
        if (elapsed_ms - noticed_ms >= notice_every_ms) {
            notice_progress(totals, queued, elapsed_ms);
            noticed_ms = elapsed_ms;
        }
    }
    warn_of_stuck(*tick);
    end_tick(tick);
    notice_end(totals, milliseconds_since(start));
}

bool is_atomic(FunctionCallInfo fcinfo)
{
    return fcinfo->context == nullptr || !IsA(fcinfo->context, CallContext) ||
           castNode(CallContext, fcinfo->context)->atomic;
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_fold_now(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_writable("kudos_fold_now()");
    const int batch_size =
        argument_in_range(fcinfo, 0, "batch_size", kudos_batch_size, KUDOS_BATCH_SIZE_MIN, KUDOS_BATCH_SIZE_MAX);
    const int max_cycles = argument_in_range(fcinfo, 1, "max_cycles", kudos_max_catchup_cycles, 1, PG_INT32_MAX);
    instr_time start;
    INSTR_TIME_SET_CURRENT(start);
    const Totals totals = fold_in_callers_transaction(batch_size, max_cycles);
    return totals_row(fcinfo, totals, milliseconds_since(start));
}

Datum kudos_entry_catch_up(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    require_writable("kudos_catch_up()");
    const int max_cycles = argument_in_range(fcinfo, 0, "max_cycles", 0, 1, PG_INT32_MAX);
    if (is_atomic(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
                        errmsg("kudos_catch_up() cannot run inside a transaction block"),
                        errdetail("It commits after every cycle."),
                        errhint("Call it by itself, or use kudos_fold_now() inside the transaction.")));
    SPI_connect_ext(SPI_OPT_NONATOMIC);
    catch_up(max_cycles);
    SPI_finish();
    PG_RETURN_VOID();
}
