// Work that can be undone without undoing the transaction around it.
#pragma once

#include "pg.hpp"

extern "C" {
#include "utils/resowner.h"
}

#include "../core/batch.hpp"

namespace kudos::server {

enum class Ended : uint8 {
    kept,
    undone,    // the work asked for it
    timed_out, // a lock was not had in time; undone
};

// Runs work() in a subtransaction, which is kept when it gives true. An error undoes it and is raised
// again: a subtransaction must not be left open. Only a lock that was not had in time is none.
template <typename Work> Ended run_in_subtransaction(Work work)
{
    static_assert(jump_safe<Work>);
    MemoryContext before = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;
    volatile Ended ended = Ended::kept;
    BeginInternalSubTransaction(nullptr);
    PG_TRY();
    {
        ended = work() ? Ended::kept : Ended::undone;
        if (ended == Ended::kept)
            ReleaseCurrentSubTransaction();
        else
            RollbackAndReleaseCurrentSubTransaction();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(before);
        ErrorData *error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        MemoryContextSwitchTo(before);
        CurrentResourceOwner = owner;
        if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
            ReThrowError(error);
        FreeErrorData(error);
        ended = Ended::timed_out;
    }
    PG_END_TRY();
    MemoryContextSwitchTo(before);
    CurrentResourceOwner = owner;
    return ended;
}

} // namespace kudos::server
