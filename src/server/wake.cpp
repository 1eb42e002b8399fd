#include "wake.hpp"

extern "C" {
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "storage/condition_variable.h"
#include "utils/rel.h"
}

#include "entry.h"
#include "shared_state.hpp"

namespace kudos::server {
namespace {

bool folded = false; // in this transaction
bool posted = false;
ExecutorFinish_hook_type previous_finish = nullptr;

bool is_queue_table(Relation relation)
{
    const char *name = RelationGetRelationName(relation);
    return strcmp(name, "kudos_ledger") == 0 || strcmp(name, "kudos_stat_events") == 0;
}

// By name: a table of this name in another schema costs one tick at the most.
void notice_posting(QueryDesc *query)
{
    if (previous_finish != nullptr)
        previous_finish(query);
    else
        standard_ExecutorFinish(query);
    if (!kudos_wake_on_commit || query->operation != CMD_INSERT || posted)
        return;
    ListCell *cell;
    foreach (cell, query->estate->es_opened_result_relations) {
        const ResultRelInfo *result = static_cast<const ResultRelInfo *>(lfirst(cell));
        posted = posted || is_queue_table(result->ri_RelationDesc);
    }
}

// The flag makes a wake-up a tick; the latch alone, which any signal sets, does not.
void wake_worker()
{
    lock_shared(LW_EXCLUSIVE);
    for (Slot &slot : shared_state()->slot)
        if (slot.database_oid == MyDatabaseId && slot.latch != nullptr && slot.pid != MyProcPid) {
            slot.wake_requested = true;
            SetLatch(slot.latch);
        }
    unlock_shared();
}

void at_end_of_transaction(XactEvent event, void *)
{
    // After the commit is visible to others (xact.c, CommitTransaction).
    if (event == XACT_EVENT_COMMIT && shared_state() != nullptr) {
        if (folded)
            ConditionVariableBroadcast(&shared_state()->something_folded);
        if (posted)
            wake_worker();
    }
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE) {
        folded = false;
        posted = false;
    }
}

} // namespace

void announce_fold_at_commit()
{
    folded = true;
}

bool take_wake_request()
{
    bool requested = false;
    lock_shared(LW_EXCLUSIVE);
    for (Slot &slot : shared_state()->slot)
        if (slot.pid == MyProcPid) {
            requested = slot.wake_requested;
            slot.wake_requested = false;
        }
    unlock_shared();
    return requested;
}

} // namespace kudos::server

void kudos_install_commit_hooks(void)
{
    using namespace kudos::server;
    previous_finish = ExecutorFinish_hook;
    ExecutorFinish_hook = notice_posting;
    RegisterXactCallback(at_end_of_transaction, nullptr);
}
