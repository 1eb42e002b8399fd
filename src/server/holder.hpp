// Who holds a row's lock, for health to name (contract, section 10, point 6).
#pragma once

#include "pg.hpp"

namespace kudos::server {

// The process whose transaction has locked or changed the row version at tid (as a Datum of type tid) of a
// table; 0 where nobody does any more, or a prepared transaction.
int32 holder_of(Oid relation, Datum tid);

} // namespace kudos::server
