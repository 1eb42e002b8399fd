#include "cycle.hpp"

extern "C" {
#include "portability/instr_time.h"
#include "utils/fmgrprotos.h"
}

#include <algorithm>

#include "failpoint.hpp"
#include "holds.hpp"
#include "mark.hpp"
#include "mode.hpp"
#include "promote.hpp"
#include "session.hpp"
#include "statement.hpp"
#include "subtransaction.hpp"
#include "targets.hpp"
#include "wake.hpp"

namespace kudos::server {
namespace {

constexpr int first_withheld_room = 16;

Statement heartbeat_statement;

void write_heartbeat(StringInfo sql, const Schema &schema, int)
{
    appendStringInfo(sql,
                     "INSERT INTO %s AS s (id, applied_at) VALUES (1, $1)"
                     " ON CONFLICT (id) DO UPDATE SET applied_at = excluded.applied_at",
                     schema.state_name);
}

bool try_applier_lock()
{
    return DatumGetBool(DirectFunctionCall1(pg_try_advisory_xact_lock_int8, Int64GetDatum(applier_lock)));
}

std::string_view copy_text(MemoryContext context, std::string_view text)
{
    char *copy = static_cast<char *>(MemoryContextAlloc(context, text.size() + 1));
    memcpy(copy, text.data(), text.size());
    copy[text.size()] = '\0';
    return {copy, text.size()};
}

// False: it could not be done, is undone, and the tick knows why.
template <typename Work> bool run_beside_the_fold(Tick &tick, StepBesideTheFold step, Work work)
{
    ErrorData *error = nullptr;
    const Ended ended = run_in_subtransaction(work, &error);
    if (ended == Ended::raised)
        tick.undone[step] = copy_text(tick.context, error->message).data();
    tick.found_locks = tick.found_locks || ended == Ended::timed_out;
    return ended == Ended::kept;
}

// Nothing reads it to choose work, so somebody who holds its row delays the stamp, not the fold.
void stamp_heartbeat(const Schema &schema, Tick &tick)
{
    run_beside_the_fold(tick, heartbeat_step, [&] {
        const Oid types[] = {TIMESTAMPOID};
        const Datum parameters[] = {TimestampGetDatum(utc_now())};
        SPI_connect();
        execute(prepared(heartbeat_statement, schema, write_heartbeat, 0, types), parameters, SPI_OK_INSERT);
        SPI_finish();
        return true;
    });
}

// Measures the phases one after the other.
class Stopwatch {
  public:
    explicit Stopwatch(CycleResult &result) : result_(result) { INSTR_TIME_SET_CURRENT(last_); }
    void lap(Phase phase)
    {
        instr_time now;
        INSTR_TIME_SET_CURRENT(now);
        instr_time spent = now;
        INSTR_TIME_SUBTRACT(spent, last_);
        result_.phase_ms[static_cast<int>(phase)] += INSTR_TIME_GET_MILLISEC(spent);
        last_ = now;
    }

  private:
    CycleResult &result_;
    instr_time last_;
};
static_assert(jump_safe<Stopwatch, CycleResult, Tick>);

void close_batch_callback(void *batch)
{
    close_batch(static_cast<Batch *>(batch));
    count_open_batches(-1);
}

// The batch lives in the cycle's memory context: an error anywhere later still frees it.
Batch &open_batch_in(MemoryContext context, const Claim &claim, std::span<const Withheld> withheld)
{
    auto *callback =
        static_cast<MemoryContextCallback *>(MemoryContextAllocZero(context, sizeof(MemoryContextCallback)));
    Batch *batch;
    require_ok(open_batch(claim.currency, claim.stats, withheld, &batch));
    count_open_batches(1);
    callback->func = close_batch_callback;
    callback->arg = batch;
    MemoryContextRegisterResetCallback(context, callback);
    return *batch;
}

// Somebody who holds a row of a user to be promoted delays the promotions, not the fold.
void promote(const Schema &schema, const Batch &batch, Tick &tick, CycleResult &result)
{
    const bool kept = run_beside_the_fold(tick, promotion_step, [&] {
        const Promotion promotion = promote_and_drain(schema);
        unpause_workers(schema, batch, promotion.users);
        result.promoted_users = static_cast<int64>(promotion.users.size());
        result.drained_users = promotion.drained_users;
        return true;
    });
    if (!kept) {
        result.promoted_users = 0;
        result.drained_users = 0;
    }
}

// Steps 3 to 5 of the contract. What could not be written ends among the refusals of the batch.
void fold_batch_of(const Schema &schema, Batch &batch, Tick &tick, Attempt attempt, CycleResult &result,
                   Stopwatch &stopwatch)
{
    validate_claim(schema, batch, attempt);
    stopwatch.lap(Phase::validate);
    failpoint("validated");

    result.quarantined_rows = quarantine(schema, batch, attempt);
    failpoint("quarantined");
    mark_applied(schema, batch, attempt);
    failpoint("marked");
    result.currency_rows = static_cast<int64>(currency_ids(batch).size());
    result.stat_rows = static_cast<int64>(stat_ids(batch).size());
    require_ok(fold_batch(batch));
    stopwatch.lap(Phase::mark);
    failpoint("folded");

    write_targets(schema, batch, Table::users, attempt);
    failpoint("users_written");
    write_floor_adjustments(schema, batch, attempt);
    result.floor_adjustments = static_cast<int64>(floor_adjustments(batch).size());
    stopwatch.lap(Phase::users);
    failpoint("floors_written");

    write_targets(schema, batch, Table::user_stats, attempt);
    failpoint("user_stats_written");
    keep_workers(schema, batch, attempt);
    write_targets(schema, batch, Table::worker_stats, attempt);
    failpoint("worker_stats_written");
    write_targets(schema, batch, Table::user_records, attempt);
    stopwatch.lap(Phase::stats);
    failpoint("user_records_written");

    settle_holds(schema, batch, attempt);
    stopwatch.lap(Phase::holds);
    failpoint("holds_settled");

    if (result.settled && tick.promotes && refusals(batch).empty())
        promote(schema, batch, tick, result);
    stopwatch.lap(Phase::promotion);
    failpoint("promoted");

    write_targets(schema, batch, Table::workers, attempt);
    failpoint("workers_written");
    write_targets(schema, batch, Table::teams, attempt);
    stopwatch.lap(Phase::workers);
    failpoint("teams_written");
}

bool is_withheld(const Tick &tick, const Withheld &refusal)
{
    return std::any_of(tick.withheld, tick.withheld + tick.withheld_count, [&](const Withheld &held) {
        return held.table == refusal.table && held.column == refusal.column && held.key == refusal.key;
    });
}

// The refusals die with the attempt; what the next one needs of them is copied. Each is new, so every
// attempt takes rows from those that follow, and the attempts come to an end.
void withhold(Tick &tick, std::span<const Withheld> refused)
{
    for (const Withheld &refusal : refused) {
        if (is_withheld(tick, refusal))
            continue;
        if (tick.withheld_count == tick.withheld_room) {
            tick.withheld_room *= 2;
            tick.withheld = static_cast<Withheld *>(
                repalloc(tick.withheld, sizeof(Withheld) * static_cast<Size>(tick.withheld_room)));
        }
        Withheld held = refusal;
        held.key.action = copy_text(tick.context, refusal.key.action);
        held.key.record = copy_text(tick.context, refusal.key.record);
        held.message = copy_text(tick.context, refusal.message);
        tick.withheld[tick.withheld_count++] = held;
        tick.found_locks = tick.found_locks || held.cause == Cause::locked;
    }
}

// Fires what was deferred to the commit, and for the rest of the transaction each at once: an error at
// the commit would be everybody's. A caller's own transaction keeps its constraints as he set them.
void check_constraints()
{
    const int settings = NewGUCNestLevel();
    if (SPI_execute("SET CONSTRAINTS ALL IMMEDIATE", false, 0) != SPI_OK_UTILITY)
        elog(ERROR, "could not check the deferred constraints");
    AtEOXact_GUC(false, settings); // what a trigger set, as in execute()
}

// One attempt. False: it is to be undone, and the tick now knows what to leave out.
bool attempt_fold(const Schema &schema, Tick &tick, Attempt attempt, CycleResult &result)
{
    MemoryContext before = CurrentMemoryContext;
    SPI_connect();
    MemoryContext cycle_context = AllocSetContextCreate(CurrentMemoryContext, "kudos cycle", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(cycle_context);

    CycleResult attempted{};
    attempted.lock_acquired = true;
    Stopwatch stopwatch(attempted);
    keep_ledger_owner(schema);
    const Claim claim = claim_postings(schema, tick.position, tick.batch_size, tick.all_withheld());
    attempted.settled = claim.settled;
    stopwatch.lap(Phase::claim);
    failpoint("claimed");

    Batch &batch = open_batch_in(cycle_context, claim, tick.all_withheld());
    if (tick.owns_transaction && tick.found_errors)
        check_constraints();
    fold_batch_of(schema, batch, tick, attempt, attempted, stopwatch);
    const bool written = refusals(batch).empty();
    if (tick.owns_transaction && written)
        check_constraints();
    if (written) {
        tick.position = position_after(claim, tick.position);
        result = attempted;
    } else {
        withhold(tick, refusals(batch));
    }

    MemoryContextSwitchTo(before);
    MemoryContextDelete(cycle_context);
    SPI_finish();
    return written;
}

// Runs attempts until one is written whole; each failed one leaves out what it found stuck, or, after a
// lock time-out, makes the next one pass over what is locked (section 10, point 6).
void fold(const Schema &schema, Tick &tick, CycleResult &result)
{
    for (bool written = false; !written;) {
        CHECK_FOR_INTERRUPTS();
        const int known = tick.withheld_count;
        const Attempt attempt = tick.needs_care() ? Attempt::careful : tick.first_attempt;
        ErrorData *error = nullptr;
        const Ended ended = run_in_subtransaction([&] { return attempt_fold(schema, tick, attempt, result); }, &error);
        written = ended == Ended::kept;
        // Once more with care, which leaves out whose making it is; if it is raised again, it is nobody's.
        if (ended == Ended::raised && tick.found_errors)
            ReThrowError(error);
        tick.found_errors = tick.found_errors || ended == Ended::raised;
        if (ended == Ended::timed_out && attempt == Attempt::careful)
            ereport(ERROR,
                    (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("a lock that a cycle needs was not had in time"),
                     errdetail("It is on a hold, or on a whole table; the cycle is tried again."),
                     errhint("pg_blocking_pids() of the waiting process names who holds it.")));
        tick.found_locks = tick.found_locks || ended == Ended::timed_out;
        if (ended == Ended::undone && tick.withheld_count == known)
            elog(ERROR, "a cycle cannot be written and does not know why");
    }
}

} // namespace

Tick *begin_tick(int batch_size, Attempt first_attempt)
{
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "kudos tick", ALLOCSET_DEFAULT_SIZES);
    Tick *tick = static_cast<Tick *>(MemoryContextAllocZero(context, sizeof(Tick)));
    tick->batch_size = batch_size;
    tick->position = ScanPosition{};
    tick->first_attempt = first_attempt;
    tick->promotes = true;
    tick->context = context;
    tick->withheld_room = first_withheld_room;
    tick->withheld =
        static_cast<Withheld *>(MemoryContextAlloc(context, sizeof(Withheld) * static_cast<Size>(first_withheld_room)));
    return tick;
}

void end_tick(Tick *tick)
{
    MemoryContextDelete(tick->context);
}

bool Tick::needs_care() const
{
    const auto held = all_withheld();
    return found_locks || found_errors ||
           std::any_of(held.begin(), held.end(), [](const Withheld &h) { return h.cause == Cause::raised; });
}

CycleResult run_cycle(Tick &tick)
{
    CycleResult result{};
    if (!lock_extension()) {
        result.extension_missing = true;
        return result;
    }
    const Schema &schema = current_schema();
    require_foldable(schema);

    result.lock_acquired = try_applier_lock();
    if (!result.lock_acquired)
        return result;
    failpoint("applier_lock_taken");

    const Acting acting = act_as_ledger_owner(schema);
    limit_lock_waits();
    SPI_connect();
    grant_own_tables(schema);
    SPI_finish();

    fold(schema, tick, result);
    failpoint("cycle_written");

    stamp_heartbeat(schema, tick);
    stop_acting(acting);
    failpoint("heartbeat_stamped");
    if (result.currency_rows + result.stat_rows + result.quarantined_rows > 0)
        announce_fold_at_commit();
    return result;
}

} // namespace kudos::server
