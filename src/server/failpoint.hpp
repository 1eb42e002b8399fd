// Places at which a test build (make FAILPOINTS=1) can be told to stop or fail; nothing in others.
#pragma once

#include "pg.hpp"

#ifdef KUDOS_FAILPOINTS
extern "C" {
#include "../failpoints/failpoints.h"
}
#endif

namespace kudos::server {

#ifdef KUDOS_FAILPOINTS
inline void failpoint(const char *place)
{
    kudos_failpoint(place);
}
inline void count_open_batches(int change)
{
    kudos_open_batches += change;
}
#else
inline void failpoint(const char *)
{
}
inline void count_open_batches(int)
{
}
#endif

} // namespace kudos::server
