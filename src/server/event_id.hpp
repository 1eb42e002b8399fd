// Event ids that follow from a name, so that a retry names the same event (contract, section 9).
#pragma once

#include "pg.hpp"

#include <string_view>

#include "../core/batch.hpp"

namespace kudos::server {

// uuid5 of the URL namespace over "aihorde-kudos:" and the key. Raises an internal error when the
// server's SHA-1 fails.
Uuid event_id_of_key(std::string_view key);

} // namespace kudos::server
