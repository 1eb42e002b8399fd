// What an account can spend, and holds on it (contract, section 8).
#pragma once

#include "pg.hpp"

#include "schema.hpp"

namespace kudos::server {

// One account in one snapshot, in cents.
struct Account {
    Cents balance = 0; // exact
    Cents floor = 0;
    Cents active_holds = 0;
    Cents queued_debits = 0; // <= 0, without those whose own hold is still active
    Cents queued = 0;        // all unapplied spendable rows

    Cents available() const { return balance - floor - active_holds + queued_debits; }
    // For display only.
    Cents effective() const { return balance + queued > floor ? balance + queued : floor; }
};

// Raises P0002 where there is no such user. Needs an SPI connection and the owner's rights.
Account read_account(const Schema &schema, std::int64_t user);

// Serialises the spends of one account until the transaction ends; taken before the account is read.
void lock_payer(std::int64_t user);

struct Reservation {
    bool granted;   // false: short of available
    Cents reserved; // what the hold has left
    Cents available;
};

// Under the payer lock. Raises 42501 where the business id is another payer's.
Reservation reserve(const Schema &schema, std::int64_t user, std::string_view business_id, Cents amount,
                    const Uuid *event);

} // namespace kudos::server
