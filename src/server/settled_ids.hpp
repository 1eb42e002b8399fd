// Which ids of an archive are settled: no row of theirs can appear any more (contract, section 9).
#pragma once

#include "pg.hpp"

namespace kudos::server {

// How the ids of an archive are given out.
struct Numbering {
    const char *name; // the sequence and the file it stands in: another one after a restart; null: none
    Oid sequence;     // invalid where the ids come from no one sequence that only goes up, one by one
    int64 last;       // last id given out; meaningless without a sequence
    bool known() const { return OidIsValid(sequence); }
};

// Looks at the default of "id". Within an SPI connection.
Numbering numbering_of(Oid archive);

// Whether all ids up to numbering.last are settled: for every snapshot taken from now on, a row of
// such an id is visible or will never be. Waits up to the setting lock_timeout for transactions that
// have drawn ids and are not over; false: some of them still are not, or nobody can tell.
bool settles(const Numbering &numbering);

} // namespace kudos::server
