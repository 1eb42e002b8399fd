#include "shared_state.hpp"

extern "C" {
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/varlena.h"
}

#include "entry.h"

namespace kudos::server {
namespace {

SharedState *state = nullptr;

} // namespace

const char *state_text(WorkerState worker_state)
{
    switch (worker_state) {
    case WorkerState::stopped:
        return "stopped";
    case WorkerState::waiting:
        return "waiting";
    case WorkerState::starting:
        return "starting";
    case WorkerState::idle:
        return "idle";
    case WorkerState::folding:
        return "folding";
    case WorkerState::standing_down:
        return "standing down";
    case WorkerState::failing:
        return "failing";
    }
    return "";
}

SharedState *shared_state()
{
    return state;
}

bool read_slot(const char *database, Slot *slot)
{
    if (state == nullptr)
        return false;
    bool found = false;
    lock_shared(LW_SHARED);
    for (const Slot &candidate : state->slot)
        if (candidate.database[0] != '\0' && strcmp(candidate.database, database) == 0) {
            *slot = candidate;
            found = true;
            break;
        }
    unlock_shared();
    return found;
}

void keep_text(char *to, Size size, const char *text)
{
    const int length = pg_mbcliplen(text, static_cast<int>(strlen(text)), static_cast<int>(size) - 1);
    memcpy(to, text, static_cast<Size>(length));
    to[length] = '\0';
}

const char *readable(char *text)
{
    if (!pg_verifymbstr(text, static_cast<int>(strlen(text)), true))
        for (char *byte = text; *byte != '\0'; byte++)
            *byte = IS_HIGHBIT_SET(*byte) ? '?' : *byte;
    return text;
}

List *wanted_databases()
{
    List *names = NIL;
    if (!SplitIdentifierString(pstrdup(kudos_databases), ',', &names))
        return NIL; // the check hook refuses such a value
    return names;
}

bool is_wanted(const char *database)
{
    ListCell *cell;
    foreach (cell, wanted_databases())
        if (strcmp(static_cast<const char *>(lfirst(cell)), database) == 0)
            return true;
    return false;
}

const char *why_no_worker()
{
    if (shared_state() == nullptr)
        return "kudos_projector is not in shared_preload_libraries, so no worker folds";
    if (!kudos_enabled)
        return "kudos_projector.enabled is off";
    Slot slot;
    return read_slot(get_database_name(MyDatabaseId), &slot) ? nullptr
                                                             : "kudos_projector.databases does not name this database";
}

} // namespace kudos::server

bool kudos_threshold_valid(const char *value)
{
    kudos::Cents cents;
    const kudos::Parsed parsed = kudos::parse_cents(value, cents);
    return value[0] == '\0' || parsed == kudos::Parsed::exact || parsed == kudos::Parsed::rounded;
}

Size kudos_shared_state_size(void)
{
    return sizeof(kudos::server::SharedState);
}

void kudos_shared_state_startup(void)
{
    using namespace kudos::server;
    bool found;
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    state = static_cast<SharedState *>(ShmemInitStruct("kudos_projector", sizeof(SharedState), &found));
    if (!found) {
        memset(static_cast<void *>(state), 0, sizeof(SharedState));
        ConditionVariableInit(&state->something_folded);
        state->lock = &GetNamedLWLockTranche("kudos_projector")->lock;
    }
    LWLockRelease(AddinShmemInitLock);
}

bool kudos_databases_valid(char *value, char **problem)
{
    List *names = NIL;
    char *copy = pstrdup(value);
    const bool parsed = SplitIdentifierString(copy, ',', &names);
    const int count = list_length(names);
    list_free(names);
    pfree(copy);
    *problem = nullptr;
    if (!parsed)
        *problem = pstrdup("The value is no comma-separated list of names; quote unusual ones with \".");
    else if (count > KUDOS_MAX_DATABASES)
        *problem = psprintf("At most %d databases can have a projector.", KUDOS_MAX_DATABASES);
    return *problem == nullptr;
}
