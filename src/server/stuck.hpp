// What a tick could not do, for health, logs and callers (contract, section 10, point 6).
#pragma once

#include "pg.hpp"

#include "cycle.hpp"

namespace kudos::server {

constexpr int stuck_size = 192; // of a description

// How many things: targets whose rows were left out, and steps beside the fold that were undone.
int count_stuck(const Tick &tick);
// Writes one of them, from 0: "users 42 (locked)".
void describe_stuck(const Tick &tick, int index, char *text, Size size);
// The process that holds its lock; 0: not known, or it is not locked.
int32 blocking_process(const Tick &tick, int index);

} // namespace kudos::server
