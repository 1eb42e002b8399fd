// Promotion and escrow drain, on settled cycles in ledger mode (contract, section 6).
#pragma once

#include "pg.hpp"

#include <span>

#include "schema.hpp"

namespace kudos::server {

struct Promotion {
    std::span<std::int64_t> users; // promoted in this cycle, ascending
    std::int64_t drained_users;
};

// Gives the TRUSTED role to every user who has earned it, and emits the pair of rows that moves the
// escrow of a trusted user to his balance. Reads the mode under the shared pin; does nothing in shadow.
Promotion promote_and_drain(const Schema &schema);

// Unpauses the workers of promoted users. Locks them and the batch's own workers in one go, by id,
// before any of them is written.
void unpause_workers(const Schema &schema, const Batch &batch, std::span<const std::int64_t> promoted);

} // namespace kudos::server
