// The launcher: keeps one worker running for each database of kudos_projector.databases.
//
//            wanted                     scout finds all in place
//   stopped ---------> scout (starting) ------------------------> worker (idle, folding, ...)
//      ^                 |  something is missing                      |
//      |                 v                                            | exit, whatever the cause:
//      |              waiting  --- pause, doubling to 15 s ---> scout | pause, and the scout again
//      +---- not wanted (any more), or sent away by a command: processes leave, by force after 2 s <---+
//
// A worker connects as the owner of kudos_ledger from its start, so that nothing in its session is
// more than that role; who the owner is only a connected process can see. Hence the scout: the same
// entry point, connected as superuser, that looks at catalogues and leaves.
#include "pg.hpp"

extern "C" {
#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_database.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
}

#include <algorithm>
#include <csignal>

#include "entry.h"
#include "shared_state.hpp"
#include "steady_clock.hpp"

namespace kudos::server {
namespace {

constexpr int first_pause_ms = 1000;
constexpr int longest_pause_ms = 15 * 1000;
constexpr int time_to_leave_ms = 2000; // for the cycle at hand; after that a worker is terminated

// What the launcher remembers of a slot, times by steady_ms(); a new launcher begins anew.
struct Attention {
    BackgroundWorkerHandle *handle;
    int64 ticks_before; // of the slot, when the process was started
    int64 next_start;
    int64 leave_by; // 0: it may stay
    int pause_ms;
    bool was_ready;
    bool failed; // the last worker ended before its first tick did
};

Attention attention[KUDOS_MAX_DATABASES];

void forget_launcher(int, Datum)
{
    lock_shared(LW_EXCLUSIVE);
    if (shared_state()->launcher == MyLatch)
        shared_state()->launcher = nullptr;
    unlock_shared();
}

// Gives every wanted database a slot, and frees the slots of others once their process is gone.
void assign_slots()
{
    List *wanted = wanted_databases();
    lock_shared(LW_EXCLUSIVE);
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++) {
        Slot &slot = shared_state()->slot[i];
        if (slot.database[0] != '\0' && slot.pid == 0 && attention[i].handle == nullptr && slot.sent_away == 0 &&
            !is_wanted(slot.database)) {
            memset(static_cast<void *>(&slot), 0, sizeof(slot));
            attention[i] = Attention{};
        }
    }
    ListCell *cell;
    foreach (cell, wanted) {
        const char *name = static_cast<const char *>(lfirst(cell));
        Slot *free_slot = nullptr;
        bool has_slot = false;
        for (Slot &slot : shared_state()->slot) {
            has_slot = has_slot || strcmp(slot.database, name) == 0;
            if (slot.database[0] == '\0' && free_slot == nullptr)
                free_slot = &slot;
        }
        if (!has_slot && free_slot != nullptr)
            strlcpy(free_slot->database, name, NAMEDATALEN);
    }
    unlock_shared();
}

// Sets the reason and says it in the log, once until it changes.
void wait_because(Slot &slot, const char *reason, const char *hint)
{
    lock_shared(LW_EXCLUSIVE);
    const bool is_new = strcmp(slot.reason, reason) != 0;
    slot.state = WorkerState::waiting;
    strlcpy(slot.reason, reason, reason_size);
    unlock_shared();
    if (is_new)
        ereport(LOG, (errmsg("kudos_projector waits for database \"%s\": %s", slot.database, reason),
                      hint != nullptr ? errhint("%s", hint) : 0));
}

struct Database {
    Oid oid; // invalid: it does not exist
    bool connectable;
};

// By heap scan, like the server's own launcher: a process without a database may find no shared
// index in its relation cache (relcache.c, RelationCacheInitializePhase2).
Database look_up_database(const char *name)
{
    Database found{InvalidOid, false};
    NameData wanted;
    namestrcpy(&wanted, name);
    StartTransactionCommand();
    Relation catalog = table_open(DatabaseRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_database_datname, BTEqualStrategyNumber, F_NAMEEQ, NameGetDatum(&wanted));
    SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, nullptr, 1, &key);
    HeapTuple tuple = systable_getnext(scan);
    if (HeapTupleIsValid(tuple)) {
        const auto *database = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
        found = {database->oid, database->datallowconn};
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    CommitTransactionCommand();
    return found;
}

bool find_database(Slot &slot)
{
    const Database database = look_up_database(slot.database);
    lock_shared(LW_EXCLUSIVE);
    slot.ready = slot.ready && database.connectable && slot.database_oid == database.oid;
    slot.database_oid = database.oid;
    unlock_shared();
    if (database.connectable)
        return true;
    char reason[reason_size];
    snprintf(reason, sizeof(reason), "database \"%s\" %s", slot.database,
             OidIsValid(database.oid) ? "does not accept connections" : "does not exist");
    wait_because(slot, reason, nullptr);
    return false;
}

bool start_process(int index, Slot &slot)
{
    BackgroundWorker worker;
    memset(&worker, 0, sizeof(worker));
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART; // the launcher restarts it, with growing pauses
    snprintf(worker.bgw_library_name, BGW_MAXLEN, "kudos_projector");
    snprintf(worker.bgw_function_name, BGW_MAXLEN, "kudos_worker_main");
    snprintf(worker.bgw_name, BGW_MAXLEN, "kudos_projector worker for %s", slot.database);
    snprintf(worker.bgw_type, BGW_MAXLEN, "kudos_projector worker");
    worker.bgw_main_arg = Int32GetDatum(index);
    worker.bgw_notify_pid = MyProcPid;
    MemoryContext before = MemoryContextSwitchTo(TopMemoryContext); // for the handle
    const bool registered = RegisterDynamicBackgroundWorker(&worker, &attention[index].handle);
    MemoryContextSwitchTo(before);
    return registered;
}

void pause_before_next_start(Attention &attend)
{
    attend.pause_ms = attend.pause_ms == 0 ? first_pause_ms : std::min(attend.pause_ms * 2, longest_pause_ms);
    attend.next_start = steady_ms() + attend.pause_ms;
}

// A process that ended: notes when the next one may start.
void notice_end(int index, Slot &slot)
{
    Attention &attend = attention[index];
    if (attend.handle == nullptr)
        return;
    pid_t pid;
    if (GetBackgroundWorkerPid(attend.handle, &pid) != BGWH_STOPPED)
        return;
    pfree(attend.handle);
    attend.handle = nullptr;
    const bool scouted = slot.ready && !attend.was_ready;
    const bool healthy = slot.ticks > attend.ticks_before;
    if (healthy || (scouted && !attend.failed))
        attend.pause_ms = 0;
    if (scouted) {
        attend.next_start = 0;
        return;
    }
    // Whatever ended the worker, the world may not be the one that the scout found: the role may have lost
    // its LOGIN, or its name.
    attend.failed = attend.was_ready && !healthy;
    lock_shared(LW_EXCLUSIVE);
    slot.ready = false;
    unlock_shared();
    pause_before_next_start(attend);
}

void start_where_due(int index, Slot &slot)
{
    Attention &attend = attention[index];
    const int64 now = steady_ms();
    if (attend.handle != nullptr || slot.pid != 0 || now < attend.next_start)
        return;
    if (!find_database(slot)) {
        pause_before_next_start(attend);
        return;
    }
    attend.ticks_before = slot.ticks;
    attend.was_ready = slot.ready;
    if (start_process(index, slot))
        return;
    attend.handle = nullptr;
    pause_before_next_start(attend);
    wait_because(slot, "no background worker slot is free", "Increase max_worker_processes and restart the server.");
}

// A worker that should not be there leaves by itself between two cycles. One that waits inside a
// cycle, for a synchronous standby perhaps, is terminated; its rows stay queued.
void see_off(int index, const Slot &slot)
{
    Attention &attend = attention[index];
    const int64 now = steady_ms();
    attend.next_start = 0;
    attend.pause_ms = 0; // whoever was told to leave did not fail
    if (slot.pid == 0) {
        attend.leave_by = 0;
    } else if (attend.leave_by == 0) {
        attend.leave_by = now + time_to_leave_ms;
    } else if (now >= attend.leave_by) {
        lock_shared(LW_SHARED); // the process id is good while it stands there
        if (slot.pid != 0)
            kill(slot.pid, SIGTERM);
        unlock_shared();
        attend.leave_by = now + time_to_leave_ms;
    }
}

// Milliseconds until something is due, at most the longest pause.
long time_to_wait()
{
    int64 wait_ms = longest_pause_ms;
    const int64 now = steady_ms();
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++) {
        const Slot &slot = shared_state()->slot[i];
        if (attention[i].leave_by != 0)
            wait_ms = std::min(wait_ms, attention[i].leave_by - now);
        if (slot.database[0] == '\0' || slot.pid != 0 || attention[i].handle != nullptr || slot.sent_away > 0)
            continue;
        wait_ms = std::min(wait_ms, attention[i].next_start - now);
    }
    return static_cast<long>(wait_ms);
}

void attend_all()
{
    assign_slots();
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++) {
        Slot &slot = shared_state()->slot[i];
        if (slot.database[0] == '\0')
            continue;
        notice_end(i, slot);
        if (kudos_enabled && is_wanted(slot.database) && slot.sent_away == 0) {
            attention[i].leave_by = 0;
            start_where_due(i, slot);
        } else {
            see_off(i, slot);
        }
    }
}

} // namespace
} // namespace kudos::server

void kudos_entry_launcher(void)
{
    using namespace kudos::server;
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0); // shared catalogues only

    before_shmem_exit(forget_launcher, Datum{0});
    lock_shared(LW_EXCLUSIVE);
    shared_state()->launcher = MyLatch;
    unlock_shared();

    MemoryContext loop = AllocSetContextCreate(TopMemoryContext, "kudos launcher", ALLOCSET_DEFAULT_SIZES);
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        MemoryContextSwitchTo(loop);
        attend_all();
        const long wait_ms = std::max(time_to_wait(), 1L);
        MemoryContextSwitchTo(TopMemoryContext);
        MemoryContextReset(loop);
        pgstat_report_activity(STATE_IDLE, nullptr);

        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, wait_ms, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
    }
}
