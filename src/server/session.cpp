#include "session.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/syscache.h"
}

namespace kudos::server {
namespace {

// Tables of the extension that the ledger's owner works on.
constexpr const char *own_tables[] = {
    "kudos_remainder_users",        "kudos_remainder_user_stats", "kudos_remainder_worker_stats",
    "kudos_remainder_user_records", "kudos_remainder_workers",    "kudos_remainder_teams",
    "kudos_transfer_requests",      "kudos_quarantine_decisions", "kudos_snapshots",
    "kudos_snapshot_marks",         "kudos_snapshot_values",
};

void pin(const char *name, const char *value)
{
    // Setting some of these has effects beyond the value (a plan cache reset), so only when needed.
    if (strcmp(GetConfigOption(name, false, false), value) == 0)
        return;
    set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

void pin_settings()
{
    pin("search_path", "pg_catalog, pg_temp");
    pin("row_security", "off");
    pin("session_replication_role", "origin");
    pin("extra_float_digits", "1");
    pin("DateStyle", "ISO, YMD");
    pin("IntervalStyle", "postgres");
    pin("bytea_output", "hex");
    pin("jit", "off");
    pin("plan_cache_mode", "auto");
    pin("max_parallel_workers_per_gather", "0");
    pin("exit_on_error", "off");
    pin("quote_all_identifiers", "off");
    pin("standard_conforming_strings", "on");
}

bool may_use(Oid relation, Oid role)
{
    for (const AclMode mode : {ACL_SELECT, ACL_INSERT, ACL_UPDATE})
        if (pg_class_aclcheck(relation, role, mode) != ACLCHECK_OK)
            return false;
    return true;
}

// As the owner of the extension's tables, who alone can give rights on them.
void run_as(Oid role, const char *command)
{
    Oid before;
    int context;
    GetUserIdAndSecContext(&before, &context);
    SetUserIdAndSecContext(role, context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
    if (SPI_execute(command, false, 0) != SPI_OK_UTILITY)
        elog(ERROR, "could not run \"%s\"", command);
    SetUserIdAndSecContext(before, context);
}

} // namespace

Oid owner_of_relation(Oid relation)
{
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple))
        elog(ERROR, "cache lookup failed for relation %u", relation);
    const Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relowner;
    ReleaseSysCache(tuple);
    return owner;
}

Acting act_as(Oid role)
{
    Acting acting;
    GetUserIdAndSecContext(&acting.role, &acting.security_context);
    acting.settings_level = NewGUCNestLevel();
    pin_settings();
    // A session that is the owner from its start needs no restriction, and its deferred triggers
    // then fire as the owner too. For others a deferred trigger would fire as the caller, at his
    // commit; the server refuses to queue one in a restricted operation (trigger.c,
    // afterTriggerMarkEvents).
    const bool is_owner = GetAuthenticatedUserId() == role && acting.role == role;
    if (!is_owner)
        SetUserIdAndSecContext(role,
                               acting.security_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
    return acting;
}

void limit_lock_waits()
{
    char value[32];
    const int effective = LockTimeout > 0 && LockTimeout < kudos_lock_timeout ? LockTimeout : kudos_lock_timeout;
    snprintf(value, sizeof(value), "%d", effective);
    set_config_option("lock_timeout", value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

int begin_brief_waits()
{
    constexpr const char *briefest = "10ms";
    const int level = NewGUCNestLevel();
    set_config_option("lock_timeout", briefest, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
    return level;
}

void end_brief_waits(int level)
{
    AtEOXact_GUC(false, level);
}

Acting act_as_ledger_owner(const Schema &schema)
{
    return act_as(schema.ledger_owner);
}

void stop_acting(const Acting &acting)
{
    SetUserIdAndSecContext(acting.role, acting.security_context);
    // Undone, not kept: what a trigger of the owner set meanwhile, a search_path perhaps, must not be what
    // the caller goes on with.
    AtEOXact_GUC(false, acting.settings_level);
}

void keep_ledger_owner(const Schema &schema)
{
    LockRelationOid(schema.ledger, AccessShareLock);
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(schema.ledger));
    const bool kept =
        HeapTupleIsValid(tuple) && reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relowner == schema.ledger_owner;
    if (HeapTupleIsValid(tuple))
        ReleaseSysCache(tuple);
    if (!kept)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
                        errmsg("table %s was dropped or given to another role meanwhile", schema.ledger_name),
                        errhint("Try again.")));
}

void grant_own_tables(const Schema &schema)
{
    const Oid namespace_oid = get_namespace_oid(schema.extension_schema, false);
    const Oid role = schema.ledger_owner;
    for (const char *table : own_tables) {
        const Oid relation = get_relname_relid(table, namespace_oid);
        if (!OidIsValid(relation))
            ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                            errmsg("table \"%s.%s\" does not exist", schema.extension_schema, table),
                            errhint("DROP EXTENSION kudos_projector; CREATE EXTENSION kudos_projector;")));
        if (may_use(relation, role) && may_use_schema(namespace_oid, role))
            continue;
        // Two sessions must not change the same catalogue row at once; nothing else waits for this.
        LockDatabaseObject(ExtensionRelationId, schema.extension, 0, ShareUpdateExclusiveLock);
        const char *grantee = quote_identifier(GetUserNameFromId(role, false));
        if (!may_use_schema(namespace_oid, role))
            run_as(owner_of_relation(relation),
                   psprintf("GRANT USAGE ON SCHEMA %s TO %s", quote_identifier(schema.extension_schema), grantee));
        if (!may_use(relation, role))
            run_as(owner_of_relation(relation),
                   psprintf("GRANT SELECT, INSERT, UPDATE ON %s TO %s",
                            quote_qualified_identifier(schema.extension_schema, table), grantee));
    }
}

} // namespace kudos::server
