// Who is told when a transaction commits: waiters for what was folded, and the worker of what was
// posted (architecture, decision 8).
#pragma once

#include "pg.hpp"

namespace kudos::server {

// This transaction folded rows: at its commit, those who wait for an event look again.
void announce_fold_at_commit();

// Something was posted to this worker's database since it last asked.
bool take_wake_request();

} // namespace kudos::server
