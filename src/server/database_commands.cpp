// Commands on a whole database that fail while anybody is connected to it (procarray.c,
// CountOtherDBBackends): its worker is asked to leave first, and comes back when the transaction is over.
//
// Whoever may run such a command on a database owns it. The server looks at that only once the
// command runs, so we look first: nobody else may send a worker away.
#include "pg.hpp"

extern "C" {
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "utils/acl.h"
#include "utils/wait_event.h"
}

#include "entry.h"
#include "shared_state.hpp"
#include "steady_clock.hpp"

namespace kudos::server {
namespace {

constexpr long longest_wait_ms = 10 * 1000;

ProcessUtility_hook_type previous_utility = nullptr;
bool kept_away[KUDOS_MAX_DATABASES]; // workers of these slots, by this transaction

const char *option_text(List *options, const char *name)
{
    ListCell *cell;
    foreach (cell, options) {
        DefElem *option = static_cast<DefElem *>(lfirst(cell));
        if (strcmp(option->defname, name) == 0)
            return option->arg == nullptr ? nullptr : defGetString(option);
    }
    return nullptr;
}

// The database that nobody may be connected to while the command runs; null: any may.
const char *database_to_leave(Node *statement)
{
    switch (nodeTag(statement)) {
    case T_DropdbStmt:
        return reinterpret_cast<DropdbStmt *>(statement)->dbname;
    case T_CreatedbStmt:
        return option_text(reinterpret_cast<CreatedbStmt *>(statement)->options, "template");
    case T_RenameStmt: {
        const auto *rename = reinterpret_cast<RenameStmt *>(statement);
        return rename->renameType == OBJECT_DATABASE ? rename->subname : nullptr;
    }
    case T_AlterDatabaseStmt: {
        const auto *alter = reinterpret_cast<AlterDatabaseStmt *>(statement);
        return option_text(alter->options, "tablespace") != nullptr ? alter->dbname : nullptr;
    }
    default:
        return nullptr;
    }
}

bool owns_database(const char *name)
{
    const Oid database = get_database_oid(name, true);
    if (!OidIsValid(database))
        return false;
#if PG_VERSION_NUM >= 160000
    return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
    return pg_database_ownercheck(database, GetUserId());
#endif
}

// From here on no process of ours enters the slot; the launcher sees to it that the one there leaves.
void send_away(const char *database)
{
    lock_shared(LW_EXCLUSIVE);
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++) {
        Slot &slot = shared_state()->slot[i];
        if (kept_away[i] || slot.database[0] == '\0' || strcmp(slot.database, database) != 0)
            continue;
        slot.sent_away++;
        kept_away[i] = true;
        if (slot.latch != nullptr)
            SetLatch(slot.latch);
        if (shared_state()->launcher != nullptr)
            SetLatch(shared_state()->launcher);
    }
    unlock_shared();
}

// When the transaction of the command is over, whichever way: what it did to the database is visible.
void let_come_back(XactEvent event, void *)
{
    if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
        return;
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++) {
        if (!kept_away[i])
            continue;
        kept_away[i] = false;
        lock_shared(LW_EXCLUSIVE);
        shared_state()->slot[i].sent_away--;
        if (shared_state()->launcher != nullptr)
            SetLatch(shared_state()->launcher);
        unlock_shared();
    }
}

bool anybody_left()
{
    bool left = false;
    lock_shared(LW_SHARED);
    for (int i = 0; i < KUDOS_MAX_DATABASES; i++)
        left = left || (kept_away[i] && shared_state()->slot[i].pid != 0);
    unlock_shared();
    return left;
}

// The server waits once more, and refuses the command if the worker is still there.
void wait_until_gone()
{
    const int64 give_up = steady_ms() + longest_wait_ms;
    while (anybody_left() && steady_ms() < give_up) {
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
}

void utility(PlannedStmt *statement, const char *query, bool read_only_tree, ProcessUtilityContext context,
             ParamListInfo parameters, QueryEnvironment *environment, DestReceiver *destination,
             QueryCompletion *completion)
{
    const char *database = database_to_leave(statement->utilityStmt);
    if (database != nullptr && !RecoveryInProgress() && owns_database(database)) {
        send_away(database);
        wait_until_gone();
    }
    if (previous_utility != nullptr)
        previous_utility(statement, query, read_only_tree, context, parameters, environment, destination, completion);
    else
        standard_ProcessUtility(statement, query, read_only_tree, context, parameters, environment, destination,
                                completion);
}

} // namespace
} // namespace kudos::server

void kudos_install_utility_hook(void)
{
    using namespace kudos::server;
    previous_utility = ProcessUtility_hook;
    ProcessUtility_hook = utility;
    RegisterXactCallback(let_come_back, nullptr);
}
