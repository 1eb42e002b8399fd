// Time that only runs forward: what is waited for must not move when somebody sets the wall clock.
#pragma once

#include "pg.hpp"

extern "C" {
#include "portability/instr_time.h"
}

namespace kudos::server {

inline int64 steady_ms()
{
    instr_time now;
    INSTR_TIME_SET_CURRENT(now);
    return static_cast<int64>(INSTR_TIME_GET_MILLISEC(now));
}

} // namespace kudos::server
