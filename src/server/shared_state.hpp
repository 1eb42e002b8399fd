// What the workers know of themselves, in shared memory, for everybody to read (architecture,
// decisions 11 and 12). One slot a database; every field is protected by the one lock.
#pragma once

#include "pg.hpp"

extern "C" {
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
}

#include "stuck.hpp"

namespace kudos::server {

enum class WorkerState : uint8 { stopped, waiting, starting, idle, folding, standing_down, failing };
const char *state_text(WorkerState state);

constexpr int reason_size = 512;
constexpr int max_stuck_shown = 8;

struct Slot {
    char database[NAMEDATALEN]; // empty: free
    Oid database_oid;
    Oid role;            // that the worker connects as, found by the scout; invalid: superuser
    pid_t pid;           // 0: no process
    Latch *latch;        // of that process, in shared memory
    bool wake_requested; // a posting was committed
    bool ready;          // the scout found everything in place
    int sent_away;       // commands at work that want nobody connected to the database
    WorkerState state;
    char reason[reason_size]; // why it waits or stands down
    TimestampTz started_at;
    // Counters since the server started; they move after the commit, never before.
    int64 ticks;
    int64 cycles;
    int64 currency_rows;
    int64 stat_rows;
    int64 quarantined_rows;
    int64 floor_adjustments;
    int64 promoted_users;
    int64 drained_users;
    int64 errors;
    int64 lock_waits; // ticks in which some target's lock was not had in time
    double phase_ms[phase_count];
    TimestampTz last_tick_at;
    TimestampTz last_fold_at;
    TimestampTz last_error_at; // 0: none
    int last_error_code;
    char last_error[reason_size];
    int consecutive_errors;
    int stuck_count;
    char stuck[max_stuck_shown][stuck_size];
    int32 blocking_pid[max_stuck_shown]; // 0: not known, or none
};

struct SharedState {
    LWLock *lock;
    ConditionVariable something_folded; // broadcast after the commit of a fold
    Latch *launcher;                    // null while it does not run
    Slot slot[KUDOS_MAX_DATABASES];
};

// Null where the library was not preloaded.
SharedState *shared_state();

// Holds the lock while it lives in a frame that raises nothing: an error would release the lock, but
// not run a destructor, so there is none to run.
inline void lock_shared(LWLockMode mode)
{
    LWLockAcquire(shared_state()->lock, mode);
}
inline void unlock_shared()
{
    LWLockRelease(shared_state()->lock);
}

// Copies the slot of a database; false where it has none.
bool read_slot(const char *database, Slot *slot);

// Copies what fits of a text, in whole characters of this database's encoding.
void keep_text(char *to, Size size, const char *text);

// What a worker of another database kept, whose encoding may be another: a text of this one, with question
// marks where it is none. Changes it in place.
const char *readable(char *text);

// Why no worker folds this database; null: it has one.
const char *why_no_worker();

// Names in kudos_projector.databases, in the current memory context.
List *wanted_databases();
bool is_wanted(const char *database);

} // namespace kudos::server
