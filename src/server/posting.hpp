// Appending postings (contract, sections 1 and 7): what our own tools and tests post with.
#pragma once

#include "pg.hpp"

#include "schema.hpp"

namespace kudos::server {

// A row of kudos_ledger that is about to be appended, unapplied.
struct NewPosting {
    Uuid event;
    std::int64_t user = 0;
    bool escrow = false;
    std::string_view entry_type;
    Cents amount = 0;
    std::string_view reservation; // business id of the hold that a debit names; empty: none
};

// Reads an SQL amount. Raises 22003 where it is no finite number of whole cents.
Cents amount_argument(FunctionCallInfo fcinfo, int argument);

// Pins the mode, and raises 55000 in shadow, where the application owns the balances. Needs an SPI
// connection and the owner's rights.
void require_ledger_mode(const Schema &schema, const char *caller);

// Appends the rows as they are. Needs an SPI connection and the owner's rights.
void append_postings(const Schema &schema, std::span<const NewPosting> rows);

} // namespace kudos::server
