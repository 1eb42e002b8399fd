// Step 5 of the cycle, the holds: consume what debits name, release what is complete (section 5).
#pragma once

#include "pg.hpp"

#include "mark.hpp"
#include "schema.hpp"

namespace kudos::server {

// Locks every hold that the batch touches once, in id order, and writes what is left of it. After
// marking, since an event is complete when none of its currency rows is unapplied.
void settle_holds(const Schema &schema, Batch &batch, Attempt attempt);

} // namespace kudos::server
