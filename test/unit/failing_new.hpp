// operator new of the whole program, which can be told to fail.
#pragma once

namespace kudos::test {

constexpr long never = -1;
extern long allocations_left; // until one fails, once

} // namespace kudos::test
