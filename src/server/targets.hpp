// Step 5 of the cycle: lock the targets in primary-key order, then write them (sections 2 and 3).
#pragma once

#include "pg.hpp"

#include "mark.hpp"
#include "schema.hpp"

namespace kudos::server {

// Locks what the batch adds to, lets core settle the new values, and writes them with their
// remainders. What cannot be written as intended ends among the refusals of the batch.
void write_targets(const Schema &schema, Batch &batch, Table table, Attempt attempt);

// Drops the deltas of workers that are gone, and keeps the others from going before the commit.
void keep_workers(const Schema &schema, Batch &batch, Attempt attempt);

// Records what the floor created (section 3). Refuses the balances whose row did not arrive as meant.
void write_floor_adjustments(const Schema &schema, Batch &batch, Attempt attempt);

} // namespace kudos::server
