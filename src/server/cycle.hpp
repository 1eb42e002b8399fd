// The cycle: one transaction's worth of folding (contract, section 2). The worker,
// kudos_fold_now() and kudos_catch_up() all run this one function.
#pragma once

#include "pg.hpp"

#include "claim.hpp"
#include "mark.hpp"
#include "schema.hpp"

namespace kudos::server {

enum class Phase : uint8 { claim, validate, mark, users, stats, holds, promotion, workers };
constexpr int phase_count = 8;

struct CycleResult {
    bool extension_missing;
    bool lock_acquired;
    bool settled;
    int64 currency_rows;
    int64 stat_rows;
    int64 quarantined_rows;
    int64 floor_adjustments;
    int64 promoted_users;
    int64 drained_users;
    double phase_ms[phase_count];
};

// What a cycle does besides folding; if it cannot, it folds all the same.
enum StepBesideTheFold { promotion_step, heartbeat_step, steps_beside_the_fold };

// What the cycles of one tick hand on to each other.
struct Tick {
    int batch_size;
    ScanPosition position;
    Attempt first_attempt;                     // careful while locks are known to be stuck
    bool promotes;                             // false within a mode transition
    bool owns_transaction;                     // the cycle's transaction has nothing of a caller's in it
    bool found_locks;                          // some target's lock was held past the time-out, or passed over
    bool found_errors;                         // an attempt failed with what may be of one row's making
    const char *undone[steps_beside_the_fold]; // why these were undone; null: they were not
    int withheld_count;
    int withheld_room;
    Withheld *withheld; // with its texts in the memory context of the tick
    MemoryContext context;

    // Whether the next attempt, or the next tick, had better look at every row before it writes it.
    bool needs_care() const;
    std::span<const Withheld> all_withheld() const { return {withheld, static_cast<std::size_t>(withheld_count)}; }
};

// Begins a tick from the beginning of the queue. batch_size: rows of each kind a cycle claims.
Tick *begin_tick(int batch_size, Attempt first_attempt);
void end_tick(Tick *tick);

// Runs one cycle in the current transaction, which must be able to write; nothing of it exists for
// anybody before that commits. Raises what a statement raises, and 55000, 42xxx where the schema is
// unfit; an error undoes the whole cycle.
CycleResult run_cycle(Tick &tick);

} // namespace kudos::server
