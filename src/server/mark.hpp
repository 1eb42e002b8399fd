// Steps 3 and 4 of the cycle: validation against the database, quarantine, marking (sections 2, 4).
#pragma once

#include "pg.hpp"

#include "schema.hpp"

namespace kudos::server {

// What waits for a row lock: an optimistic attempt waits for it up to the lock time-out, a careful
// one leaves the rows of locked targets out.
enum class Attempt { optimistic, careful };

// An optimistic attempt waits for rows; a careful one locks whom it can, and reads who is there.
enum LockMode { wait_for_lock, skip_locked, no_lock, lock_modes };

// What the database can take at the moment. In the current memory context.
ProjectionLimits projection_limits(const Schema &schema);

// Locks the users that claimed stat rows name FOR KEY SHARE, so that none is deleted before the
// commit, and validates the claimed stat rows.
void validate_claim(const Schema &schema, Batch &batch, Attempt attempt);

// Locks the users FOR KEY SHARE and gives those that exist, ascending; users must be ascending.
std::span<const std::int64_t> lock_existing_users(const Schema &schema, std::span<const std::int64_t> users);

// Sets aside the stat rows of invalid events, and further unapplied ones that nobody holds. Gives
// how many rows were quarantined. Refuses events that a trigger or rule kept from it.
std::int64_t quarantine(const Schema &schema, Batch &batch, Attempt attempt);

// Marks exactly the rows that are about to be folded. Refuses those that a trigger or rule kept from being
// marked.
void mark_applied(const Schema &schema, Batch &batch, Attempt attempt);

} // namespace kudos::server
