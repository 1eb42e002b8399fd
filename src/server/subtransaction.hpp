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
    raised,    // an error that may be of one row's making; undone
};

// Errors that a trigger or constraint raises for one row as well as for all. Not so: conflicts with other
// transactions, what the server lacks, who stops it, and faults of its own; there, the cycle is tried again.
inline bool may_be_of_one_row(const ErrorData *error)
{
    switch (ERRCODE_TO_CATEGORY(error->sqlerrcode)) {
    case ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK):
    case ERRCODE_TO_CATEGORY(ERRCODE_INSUFFICIENT_RESOURCES):
    case ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION):
    case ERRCODE_TO_CATEGORY(ERRCODE_SYSTEM_ERROR):
    case ERRCODE_TO_CATEGORY(ERRCODE_INTERNAL_ERROR):
        return false;
    default:
        return true;
    }
}

// Runs work() in a subtransaction, which is kept when it gives true. An error undoes it and is raised
// again: a subtransaction must not be left open. Only a lock that was not had in time is none; nor is one
// that may be of one row's making where the caller has room for it.
template <typename Work> Ended run_in_subtransaction(Work work, ErrorData **raised = nullptr)
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
        if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE) {
            FreeErrorData(error);
            ended = Ended::timed_out;
        } else if (raised != nullptr && may_be_of_one_row(error)) {
            *raised = error;
            ended = Ended::raised;
        } else {
            ReThrowError(error);
        }
    }
    PG_END_TRY();
    MemoryContextSwitchTo(before);
    CurrentResourceOwner = owner;
    return ended;
}

} // namespace kudos::server
