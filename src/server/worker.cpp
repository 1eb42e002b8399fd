// The worker: one per database, a tick every interval (contract, sections 2 and 11).
//
// Nothing is open between ticks, and an idle tick writes nothing but the heartbeat. An error of a
// cycle is logged once, kept for health and followed by a growing pause; the worker lives on.
#include "pg.hpp"

extern "C" {
#include "catalog/pg_authid.h"
#include "libpq/pqsignal.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
}

#include <algorithm>

#include "cycle.hpp"
#include "entry.h"
#include "failpoint.hpp"
#include "session.hpp"
#include "shared_state.hpp"
#include "steady_clock.hpp"
#include "stuck.hpp"
#include "wake.hpp"

namespace kudos::server {
namespace {

constexpr int longest_error_pause_ms = 60 * 1000;
constexpr int first_error_pause_ms = 1000;

// Standing down, the worker reconnects this often: settings of the database or the role reach a
// session only when it begins.
constexpr int reconnect_ms = 30 * 1000;

Slot *my_slot = nullptr;
Oid connected_as = InvalidOid; // invalid: superuser, acting as the owner in a restricted context

// ---------------------------------------------------------------------------------------------
// The slot

void leave_slot(int, Datum)
{
    lock_shared(LW_EXCLUSIVE);
    if (my_slot->pid == MyProcPid) {
        my_slot->pid = 0;
        my_slot->latch = nullptr;
        if (my_slot->state != WorkerState::waiting && my_slot->state != WorkerState::standing_down)
            my_slot->state = WorkerState::stopped;
    }
    Latch *launcher = shared_state()->launcher;
    unlock_shared();
    if (launcher != nullptr)
        SetLatch(launcher);
}

// False: another process has it, or nobody may.
bool enter_slot(int index)
{
    my_slot = &shared_state()->slot[index];
    lock_shared(LW_EXCLUSIVE);
    const bool free = my_slot->pid == 0 && my_slot->database[0] != '\0' && my_slot->sent_away == 0;
    if (free) {
        my_slot->pid = MyProcPid;
        my_slot->latch = MyLatch;
        my_slot->started_at = GetCurrentTimestamp();
    }
    unlock_shared();
    return free;
}

void set_state(WorkerState state)
{
    lock_shared(LW_EXCLUSIVE);
    my_slot->state = state;
    // A scout on its way does not know yet whether the reason holds.
    if (state == WorkerState::idle || state == WorkerState::folding || state == WorkerState::stopped)
        my_slot->reason[0] = '\0';
    unlock_shared();
}

// Says why there is nothing to do, once until the reason changes.
void say_once(WorkerState state, const char *what, const char *reason, const char *hint)
{
    char kept[reason_size];
    keep_text(kept, reason_size, reason);
    lock_shared(LW_EXCLUSIVE);
    const bool is_new = strcmp(my_slot->reason, kept) != 0;
    my_slot->state = state;
    strlcpy(my_slot->reason, kept, reason_size);
    unlock_shared();
    if (is_new)
        ereport(LOG, (errmsg("kudos_projector %s in database \"%s\": %s", what, my_slot->database, reason),
                      hint != nullptr ? errhint("%s", hint) : 0));
}

void count_cycle(const CycleResult &result)
{
    lock_shared(LW_EXCLUSIVE);
    my_slot->cycles++;
    my_slot->currency_rows += result.currency_rows;
    my_slot->stat_rows += result.stat_rows;
    my_slot->quarantined_rows += result.quarantined_rows;
    my_slot->floor_adjustments += result.floor_adjustments;
    my_slot->promoted_users += result.promoted_users;
    my_slot->drained_users += result.drained_users;
    for (int phase = 0; phase < phase_count; phase++)
        my_slot->phase_ms[phase] += result.phase_ms[phase];
    if (result.currency_rows + result.stat_rows > 0)
        my_slot->last_fold_at = GetCurrentTimestamp();
    unlock_shared();
}

void count_tick(const Tick &tick)
{
    char texts[max_stuck_shown][stuck_size];
    int32 pids[max_stuck_shown];
    const int stuck = count_stuck(tick);
    const int count = std::min(stuck, max_stuck_shown);
    for (int i = 0; i < count; i++) {
        describe_stuck(tick, i, texts[i], stuck_size);
        pids[i] = blocking_process(tick, i);
    }
    lock_shared(LW_EXCLUSIVE);
    my_slot->ticks++;
    my_slot->lock_waits += tick.found_locks ? 1 : 0;
    my_slot->last_tick_at = GetCurrentTimestamp();
    my_slot->consecutive_errors = 0;
    const bool was_stuck = my_slot->stuck_count > 0;
    my_slot->stuck_count = stuck;
    memcpy(my_slot->stuck, texts, sizeof(texts));
    memcpy(my_slot->blocking_pid, pids, sizeof(pids));
    unlock_shared();
    if (count > 0 && !was_stuck)
        ereport(LOG, (errmsg("kudos_projector leaves rows of %d targets unapplied in database \"%s\"", stuck,
                             my_slot->database),
                      errdetail("The first is %s.", texts[0]),
                      errhint("kudos_health() lists them; everything else is folded.")));
}

// ---------------------------------------------------------------------------------------------
// Errors

// The errors that were logged since the last good tick; the same kind is logged once.
constexpr int max_kinds = 16;
int logged_kinds[max_kinds];
int logged_kind_count = 0;

bool is_new_kind(int code)
{
    for (int i = 0; i < logged_kind_count; i++)
        if (logged_kinds[i] == code)
            return false;
    if (logged_kind_count < max_kinds)
        logged_kinds[logged_kind_count++] = code;
    return true;
}

void keep_error(const ErrorData *error)
{
    const char *text = error->hint != nullptr ? psprintf("%s HINT: %s", error->message, error->hint) : error->message;
    lock_shared(LW_EXCLUSIVE);
    my_slot->state = WorkerState::failing;
    my_slot->errors++;
    my_slot->consecutive_errors++;
    my_slot->last_error_at = GetCurrentTimestamp();
    my_slot->last_error_code = error->sqlerrcode;
    keep_text(my_slot->last_error, reason_size, text);
    unlock_shared();
}

// The top of the worker's error stack, as in the server's own launcher (autovacuum.c): report, abort,
// clean, go on.
void recover_from_error(MemoryContext loop)
{
    HOLD_INTERRUPTS();
    disable_all_timeouts(false);
    QueryCancelPending = false;
    MemoryContextSwitchTo(loop);
    ErrorData *error = CopyErrorData();
    if (is_new_kind(error->sqlerrcode))
        EmitErrorReport();
    FlushErrorState();
    AbortCurrentTransaction();
    LWLockReleaseAll();
    keep_error(error);
    pgstat_report_activity(STATE_IDLE, nullptr);
    MemoryContextSwitchTo(loop);
    MemoryContextReset(loop);
    RESUME_INTERRUPTS();
}

int error_pause_ms()
{
    const int doublings = std::min(my_slot->consecutive_errors, 7);
    return doublings == 0 ? kudos_interval
                          : std::min(std::max(first_error_pause_ms, kudos_interval) << (doublings - 1),
                                     std::max(longest_error_pause_ms, kudos_interval));
}

// ---------------------------------------------------------------------------------------------
// The session

void set_session(const char *name, const char *value)
{
    SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

// Settings of the database or role must not reach a cycle (architecture, decision 6). Each cycle
// pins what a statement could mean; these decide what a transaction is.
void pin_session()
{
    set_session("default_transaction_isolation", "read committed");
    set_session("default_transaction_deferrable", "off");
    set_session("search_path", "pg_catalog, pg_temp");
    set_session("synchronous_commit", "on");
    set_session("statement_timeout", "0");
    set_session("idle_in_transaction_session_timeout", "0");
    set_session("exit_on_error", "off"); // an error is an answer, not the end
    set_session("role", "none");
#if PG_VERSION_NUM >= 170000
    set_session("transaction_timeout", "0");
#endif
    set_session("application_name", "kudos_projector");
}

void follow_lock_timeout()
{
    char value[32];
    snprintf(value, sizeof(value), "%d", kudos_lock_timeout);
    set_session("lock_timeout", value);
}

void begin_transaction(const char *activity)
{
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
    pgstat_report_activity(STATE_RUNNING, activity);
}

void commit_transaction()
{
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_activity(STATE_IDLE, nullptr);
}

[[noreturn]] void leave()
{
    proc_exit(0);
}

void reload_if_asked()
{
    if (!ConfigReloadPending)
        return;
    ConfigReloadPending = false;
    ProcessConfigFile(PGC_SIGHUP);
    follow_lock_timeout();
}

bool sent_away()
{
    lock_shared(LW_SHARED);
    const bool away = my_slot->sent_away > 0;
    unlock_shared();
    return away;
}

void leave_unless_wanted(MemoryContext loop)
{
    MemoryContext before = MemoryContextSwitchTo(loop);
    const bool wanted = kudos_enabled && is_wanted(my_slot->database) && !sent_away();
    MemoryContextSwitchTo(before);
    if (wanted)
        return;
    set_state(WorkerState::stopped);
    ereport(LOG, (errmsg("kudos_projector stops in database \"%s\"", my_slot->database)));
    leave();
}

// ---------------------------------------------------------------------------------------------
// The scout

// Before 17 a background worker cannot connect as a role without LOGIN (miscinit.c,
// InitializeSessionUserId); then the worker stays superuser and acts as the owner in a restricted
// context, in which deferred triggers cannot wait for the commit and are fired at once.
#if PG_VERSION_NUM >= 170000
constexpr bits32 as_any_role = BGWORKER_BYPASS_ROLELOGINCHECK;
#else
constexpr bits32 as_any_role = 0;
#endif

// The ledger's owner, where the worker can connect as that role.
Oid role_to_connect(Oid owner)
{
    if (as_any_role != 0)
        return owner;
    HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(owner));
    const bool can_login = HeapTupleIsValid(tuple) && reinterpret_cast<Form_pg_authid>(GETSTRUCT(tuple))->rolcanlogin;
    if (HeapTupleIsValid(tuple))
        ReleaseSysCache(tuple);
    return can_login ? owner : InvalidOid;
}

// Looks whether everything is there and who owns the ledger, and leaves; an error is why not.
[[noreturn]] void scout()
{
    BackgroundWorkerInitializeConnectionByOid(my_slot->database_oid, InvalidOid, 0);
    pin_session();
    follow_lock_timeout();
    MemoryContext context = AllocSetContextCreate(TopMemoryContext, "kudos scout", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    set_state(WorkerState::starting);
    begin_transaction("looking for the ledger");
    Oid role = InvalidOid;
    PG_TRY();
    {
        const Schema &schema = current_schema();
        require_foldable(schema);
        role = role_to_connect(schema.ledger_owner);
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        ErrorData *error = CopyErrorData();
        FlushErrorState();
        AbortCurrentTransaction();
        say_once(WorkerState::waiting, "waits", error->message, error->hint);
        leave();
    }
    PG_END_TRY();
    commit_transaction();
    lock_shared(LW_EXCLUSIVE);
    my_slot->role = role;
    my_slot->ready = true;
    unlock_shared();
    leave();
}

// Back to the scout: the world is not the one that it found.
[[noreturn]] void leave_to_scout()
{
    lock_shared(LW_EXCLUSIVE);
    my_slot->ready = false;
    unlock_shared();
    leave();
}

// ---------------------------------------------------------------------------------------------
// Ticks

bool owner_changed()
{
    return OidIsValid(connected_as) && current_schema().ledger_owner != connected_as;
}

bool standing_down()
{
    if (!DefaultXactReadOnly)
        return false;
    say_once(WorkerState::standing_down, "stands down", "default_transaction_read_only is on",
             "Set it to off to go on; rows stay queued until then.");
    return true;
}

CycleResult run_committed_cycle(Tick &tick)
{
    begin_transaction("folding kudos");
    if (lock_extension() && owner_changed()) {
        commit_transaction();
        leave_to_scout();
    }
    const CycleResult result = run_cycle(tick);
    failpoint("cycle_ended");
    commit_transaction();
    failpoint("cycle_committed");
    return result;
}

void run_tick(MemoryContext loop, bool *careful)
{
    set_state(WorkerState::folding);
    MemoryContextSwitchTo(loop);
    Tick *tick = begin_tick(kudos_batch_size, *careful ? Attempt::careful : Attempt::optimistic);
    tick->owns_transaction = true;
    for (int cycle = 0; cycle < kudos_max_catchup_cycles; cycle++) {
        const CycleResult result = run_committed_cycle(*tick);
        MemoryContextSwitchTo(loop);
        if (result.extension_missing)
            leave_to_scout();
        if (!result.lock_acquired)
            break; // another projector, the Horde's perhaps, is at work
        count_cycle(result);
        pgstat_report_stat(false);
        if (result.settled || ConfigReloadPending || sent_away())
            break;
        CHECK_FOR_INTERRUPTS();
    }
    *careful = tick->needs_care();
    count_tick(*tick);
    logged_kind_count = 0;
    end_tick(tick);
    pgstat_report_stat(true);
    set_state(WorkerState::idle);
}

void wait_ms(long milliseconds)
{
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, std::max(milliseconds, 1L),
                    PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
}

[[noreturn]] void project()
{
    connected_as = my_slot->role;
    BackgroundWorkerInitializeConnectionByOid(my_slot->database_oid, connected_as, as_any_role);
    pin_session();
    follow_lock_timeout();
    ereport(LOG, (errmsg("kudos_projector folds database \"%s\"", my_slot->database)));

    static MemoryContext loop;
    static int64 next_tick;
    static int64 stood_down_since;
    static bool careful;
    loop = AllocSetContextCreate(TopMemoryContext, "kudos worker", ALLOCSET_DEFAULT_SIZES);
    next_tick = steady_ms();

    sigjmp_buf top_of_stack;
    if (sigsetjmp(top_of_stack, 1) != 0) {
        error_context_stack = nullptr;
        recover_from_error(loop);
        next_tick = steady_ms() + error_pause_ms();
    }
    PG_exception_stack = &top_of_stack;

    for (;;) {
        // A signal that is no reload costs no tick: what is due is told by the clock.
        CHECK_FOR_INTERRUPTS();
        reload_if_asked();
        leave_unless_wanted(loop);
        const int64 now = steady_ms();
        // The interval may have become shorter.
        next_tick = std::min(next_tick, now + std::max(error_pause_ms(), kudos_interval));
        if (now < next_tick && !(kudos_wake_on_commit && my_slot->consecutive_errors == 0 && take_wake_request())) {
            wait_ms(static_cast<long>(next_tick - now));
            continue;
        }
        if (standing_down()) {
            stood_down_since = stood_down_since == 0 ? now : stood_down_since;
            if (now - stood_down_since >= reconnect_ms)
                leave();
        } else {
            stood_down_since = 0;
            run_tick(loop, &careful);
        }
        MemoryContextSwitchTo(TopMemoryContext);
        MemoryContextReset(loop);
        next_tick = steady_ms() + kudos_interval;
    }
}

} // namespace
} // namespace kudos::server

void kudos_entry_worker(int index)
{
    using namespace kudos::server;
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();

    if (shared_state() == nullptr || index < 0 || index >= KUDOS_MAX_DATABASES || !enter_slot(index))
        proc_exit(0);
    before_shmem_exit(leave_slot, Datum{0});
    if (my_slot->ready)
        project();
    scout();
}
