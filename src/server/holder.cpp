#include "holder.hpp"

extern "C" {
#include "access/heapam.h"
#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
}

namespace kudos::server {
namespace {

// What a row version says of who locked or changed it last.
struct Locker {
    TransactionId xmax = InvalidTransactionId;
    uint16 infomask = HEAP_XMAX_INVALID;
};

Locker read_locker(Relation relation, ItemPointer tid)
{
    Locker locker;
    HeapTupleData tuple;
    Buffer buffer;
    tuple.t_self = *tid;
    if (heap_fetch(relation, SnapshotAny, &tuple, &buffer, false)) {
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        locker.xmax = HeapTupleHeaderGetRawXmax(tuple.t_data);
        locker.infomask = tuple.t_data->t_infomask;
        UnlockReleaseBuffer(buffer);
    }
    return locker;
}

// The projector itself may be among those that share the lock.
int32 process_of(TransactionId transaction)
{
    if (!TransactionIdIsInProgress(transaction) || TransactionIdIsCurrentTransactionId(transaction))
        return 0;
    return BackendXidGetPid(SubTransGetTopmostTransaction(transaction));
}

int32 process_of_any(MultiXactId multi, bool only_locks)
{
    MultiXactMember *members;
    const int count = GetMultiXactIdMembers(multi, &members, false, only_locks);
    int32 process = 0;
    for (int i = 0; i < count && process == 0; i++)
        process = process_of(members[i].xid);
    return process;
}

} // namespace

int32 holder_of(Oid relation_oid, Datum tid)
{
    Relation relation = table_open(relation_oid, NoLock);
    Locker locker;
    if (relation->rd_tableam == GetHeapamTableAmRoutine())
        locker = read_locker(relation, reinterpret_cast<ItemPointer>(DatumGetPointer(tid)));
    table_close(relation, NoLock);
    if ((locker.infomask & HEAP_XMAX_INVALID) != 0)
        return 0;
    if ((locker.infomask & HEAP_XMAX_IS_MULTI) != 0)
        return process_of_any(locker.xmax, HEAP_XMAX_IS_LOCKED_ONLY(locker.infomask));
    return process_of(locker.xmax);
}

} // namespace kudos::server
