// Minimum balances (contract, section 3, Floor).
#pragma once

#include <string_view>

#include "amount.hpp"

namespace kudos {

constexpr Cents anonymous_floor = -50 * cents_per_unit;
constexpr Cents pseudonymous_floor = 14 * cents_per_unit;
constexpr Cents registered_floor = 25 * cents_per_unit;

// True where Python's uuid.UUID() takes the text (UTF-8); that is how the Horde tells accounts
// that were never registered.
bool is_pseudonymous(std::string_view oauth_id);

// The balance, in cents, below which the user's account is lifted.
Cents floor_of(std::string_view oauth_id);

} // namespace kudos
