// The mode of the ledger and its gate (contract, section 7).
#pragma once

#include "pg.hpp"

#include "schema.hpp"

namespace kudos::server {

// Advisory keys, the Horde's own.
constexpr int64 applier_lock = 0x4B55444F;
constexpr int64 mode_gate = 0x4B55444D;

enum class LedgerMode : uint8 { shadow, ledger };
const char *mode_name(LedgerMode mode);

// The mode as it is committed; no row means shadow. Needs an SPI connection and the owner's rights.
LedgerMode read_mode(const Schema &schema);

// The same, and nobody can change it until this transaction ends.
LedgerMode pin_mode(const Schema &schema);

} // namespace kudos::server
