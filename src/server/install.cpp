// kudos_install_ledger(): brings a database to the current form of horde_form.hpp (contract, section 11).
#include "pg.hpp"

extern "C" {
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "commands/extension.h"
#include "funcapi.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/syscache.h"
}

#include "entry.h"
#include "indexes.hpp"
#include "schema.hpp"
#include "session.hpp"

namespace kudos::server {
namespace {

constexpr const char *counter_tables[] = {"user_stats", "worker_stats", "user_records"};

// What the report says was done; the last was not done, since a function cannot.
namespace action {
constexpr const char *create = "create";
constexpr const char *add = "add";
constexpr const char *drop = "drop";
constexpr const char *consolidate = "consolidate";
constexpr const char *set = "set";
constexpr const char *insert = "insert";
constexpr const char *run_concurrently = "run CONCURRENTLY";
} // namespace action

struct Installation {
    ReturnSetInfo *results;
    bool dry_run;
    int32 steps;
    Oid namespace_oid;
    Oid caller;
    Oid role; // that new tables belong to; the caller until it is chosen
};
static_assert(jump_safe<Installation>);

// ---------------------------------------------------------------------------------------------
// Doing and reporting

const char *table_name(const char *table)
{
    return quote_qualified_identifier(kudos_schema, table);
}

Oid find_table(const Installation &installation, const char *table)
{
    return get_relname_relid(table, installation.namespace_oid);
}

void report(Installation &installation, const char *object, const char *action, const char *statement)
{
    Datum values[] = {Int32GetDatum(++installation.steps), CStringGetTextDatum(object), CStringGetTextDatum(action),
                      CStringGetTextDatum(statement)};
    bool nulls[lengthof(values)] = {};
    tuplestore_putvalues(installation.results->setResult, installation.results->setDesc, values, nulls);
}

// Existing tables are changed as their owner, never as somebody who may do more: what they have of
// triggers and functions runs then.
Oid role_for(const Installation &installation, const char *table)
{
    const Oid relation = find_table(installation, table);
    if (!OidIsValid(relation))
        return installation.role;
    const Oid owner = owner_of_relation(relation);
    if (!has_privs_of_role(installation.caller, owner) && !has_privs_of_role(installation.role, owner))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("must be owner of table %s", table_name(table)),
                        errdetail("Neither the caller nor the owner of kudos_ledger may act as its owner, role \"%s\".",
                                  GetUserNameFromId(owner, false)),
                        errhint("Call it as a role that may act as the owners of the Horde's tables, or give the "
                                "tables one owner: ALTER TABLE %s OWNER TO ...;",
                                table_name(table))));
    return owner;
}

// Each statement with a snapshot of its own: what another installation did while this one waited is seen.
uint64 execute_for(const Installation &installation, const char *table, const char *sql)
{
    Oid before;
    int context;
    GetUserIdAndSecContext(&before, &context);
    const Oid role = role_for(installation, table);
    if (role != before)
        SetUserIdAndSecContext(role, context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
    const int settings = NewGUCNestLevel();
    const int code = SPI_execute(sql, false, 0);
    if (code < 0)
        elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(code));
    AtEOXact_GUC(false, settings); // what a trigger set must not be what the next statement is read by
    SetUserIdAndSecContext(before, context);
    return SPI_processed;
}

// Without this, a table or an index would be refused in words that do not say who lacks what.
void require_right_to_create(const Installation &installation, Oid role)
{
    if (may_use_schema(installation.namespace_oid, role, ACL_CREATE))
        return;
    const char *name = GetUserNameFromId(role, false);
    ereport(ERROR,
            (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
             errmsg("role \"%s\" has no CREATE privilege on schema \"%s\"", name, kudos_schema),
             errdetail("The tables belong to this role, and it is to create what they lack."),
             errhint("GRANT CREATE ON SCHEMA %s TO %s;", quote_identifier(kudos_schema), quote_identifier(name))));
}

void run(Installation &installation, const char *table, const char *object, const char *action, const char *statement)
{
    if (strcmp(action, action::create) == 0)
        require_right_to_create(installation, role_for(installation, table));
    if (!installation.dry_run)
        execute_for(installation, table, statement);
    report(installation, object, action, statement);
}

bool finds_rows(const Installation &installation, const char *table, const char *query)
{
    return execute_for(installation, table, query) > 0;
}

bool holds_rows(const Installation &installation, const char *table)
{
    return OidIsValid(find_table(installation, table)) &&
           finds_rows(installation, table, psprintf("SELECT FROM %s LIMIT 1;", table_name(table)));
}

// ---------------------------------------------------------------------------------------------
// Looking: relations are closed again before anything is changed, which the server insists on

Relation open_existing(Oid table)
{
    return relation_open(table, AccessShareLock);
}

void close_existing(Relation relation)
{
    relation_close(relation, AccessShareLock);
}

void require_ordinary_table(Oid table, const char *name)
{
    if (get_rel_relkind(table) != RELKIND_RELATION)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("%s is not an ordinary table", table_name(name)),
                        errhint("Rename it, or use an ordinary table of this name.")));
}

bool table_has_index(Oid table, const IndexForm &wanted)
{
    if (!OidIsValid(table))
        return false;
    Relation relation = open_existing(table);
    const bool found = has_index(relation, wanted);
    close_existing(relation);
    return found;
}

Oid find_check_of(Oid table, const CheckForm &wanted)
{
    Relation relation = open_existing(table);
    const Oid found = find_check(relation, wanted);
    close_existing(relation);
    return found;
}

Oid find_user_key(const Installation &installation, Oid table)
{
    const Oid users = find_table(installation, "users");
    Relation relation = open_existing(table);
    Oid found = InvalidOid;
    ListCell *cell;
    foreach (cell, RelationGetFKeyList(relation)) {
        const ForeignKeyCacheInfo *key = lfirst_node(ForeignKeyCacheInfo, cell);
        if (key->confrelid == users)
            found = key->conoid;
    }
    close_existing(relation);
    return found;
}

bool has_vacuum_settings(Oid table)
{
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
    bool null;
    const Datum options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &null);
    bool found = false;
    if (!null) {
        Datum *texts;
        int count;
        deconstruct_array(DatumGetArrayTypeP(options), TEXTOID, -1, false, TYPALIGN_INT, &texts, nullptr, &count);
        for (int i = 0; i < count; i++)
            found = found || strncmp(TextDatumGetCString(texts[i]), "autovacuum_", strlen("autovacuum_")) == 0;
    }
    ReleaseSysCache(tuple);
    return found;
}

// ---------------------------------------------------------------------------------------------
// Tables

const char *user_key_clause(const TableForm &form, const char *name)
{
    return psprintf("CONSTRAINT %s FOREIGN KEY (user_id) REFERENCES %s (id) %s", quote_identifier(name),
                    table_name("users"), form.user_key_action);
}

void create_table(Installation &installation, const TableForm &form)
{
    StringInfoData sql;
    initStringInfo(&sql);
    appendStringInfo(&sql, "CREATE TABLE %s (", table_name(form.name));
    const char *separator = "";
    for (const ColumnForm &column : form.columns) {
        appendStringInfo(&sql, "%s%s %s", separator, column.name, column.definition);
        separator = ", ";
    }
    for (const CheckForm &check : form.checks)
        appendStringInfo(&sql, ", CONSTRAINT %s CHECK (%s)", check.name, check.condition);
    if (form.user_key != nullptr)
        appendStringInfo(&sql, ", %s", user_key_clause(form, form.user_key));
    appendStringInfoChar(&sql, ')');
    if (form.storage != nullptr)
        appendStringInfo(&sql, " WITH (%s)", form.storage);
    appendStringInfoChar(&sql, ';');
    run(installation, form.name, psprintf("table %s", table_name(form.name)), action::create, sql.data);
}

void add_columns(Installation &installation, const TableForm &form, Oid table, bool has_rows)
{
    for (const ColumnForm &column : form.columns) {
        if (get_attnum(table, column.name) != InvalidAttrNumber)
            continue;
        if (has_rows && column.old_rows == OldRows::have_no_value)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("column \"%s\" of table %s does not exist, and the table holds rows", column.name,
                                   table_name(form.name)),
                            errdetail("Nobody but you can know what the column is to hold for them."),
                            errhint("ALTER TABLE %s ADD COLUMN %s %s, filled with what is right for the rows that are "
                                    "there; then call the function again.",
                                    table_name(form.name), column.name, column.definition)));
        run(installation, form.name, psprintf("column %s.%s", table_name(form.name), column.name), action::add,
            psprintf("ALTER TABLE %s ADD COLUMN %s %s;", table_name(form.name), column.name, column.definition));
    }
}

bool is_validated(Oid constraint)
{
    HeapTuple tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(constraint));
    const bool validated = reinterpret_cast<Form_pg_constraint>(GETSTRUCT(tuple))->convalidated;
    ReleaseSysCache(tuple);
    return validated;
}

const char *free_constraint_name(const Installation &installation, Oid table, const char *name)
{
    if (!OidIsValid(get_relation_constraint_oid(table, name, true)))
        return name;
    return ChooseConstraintName(name, nullptr, "kudos", installation.namespace_oid, NIL);
}

// Checking the rows of a large table takes long; it must not hold the lock that adding takes.
void add_constraint(Installation &installation, const TableForm &form, const char *name, const char *clause,
                    bool check_rows_later)
{
    const char *object = psprintf("constraint %s of %s", quote_identifier(name), table_name(form.name));
    run(installation, form.name, object, action::add,
        psprintf("ALTER TABLE %s ADD %s%s;", table_name(form.name), clause, check_rows_later ? " NOT VALID" : ""));
    if (check_rows_later)
        report(installation, object, action::run_concurrently,
               psprintf("ALTER TABLE %s VALIDATE CONSTRAINT %s;", table_name(form.name), quote_identifier(name)));
}

void validate_constraint(Installation &installation, const TableForm &form, Oid constraint)
{
    if (is_validated(constraint))
        return;
    const char *name = quote_identifier(get_constraint_name(constraint));
    report(installation, psprintf("constraint %s of %s", name, table_name(form.name)), action::run_concurrently,
           psprintf("ALTER TABLE %s VALIDATE CONSTRAINT %s;", table_name(form.name), name));
}

void add_constraints(Installation &installation, const TableForm &form, Oid table, bool check_rows_later)
{
    for (const CheckForm &check : form.checks) {
        const Oid existing = find_check_of(table, check);
        if (OidIsValid(existing)) {
            validate_constraint(installation, form, existing);
            continue;
        }
        const char *name = free_constraint_name(installation, table, check.name);
        add_constraint(installation, form, name,
                       psprintf("CONSTRAINT %s CHECK (%s)", quote_identifier(name), check.condition), check_rows_later);
    }
    if (form.user_key == nullptr)
        return;
    const Oid existing = find_user_key(installation, table);
    if (OidIsValid(existing)) {
        validate_constraint(installation, form, existing);
        return;
    }
    const char *name = free_constraint_name(installation, table, form.user_key);
    add_constraint(installation, form, name, user_key_clause(form, name), check_rows_later);
}

// ---------------------------------------------------------------------------------------------
// Indexes

const char *key_clause(const IndexForm &wanted)
{
    StringInfoData sql;
    initStringInfo(&sql);
    appendStringInfo(&sql, "CONSTRAINT %s %s (", wanted.name,
                     wanted.kind == IndexKind::primary_key ? "PRIMARY KEY" : "UNIQUE");
    const char *separator = "";
    for (const char *key : wanted.key) {
        if (key != nullptr)
            appendStringInfo(&sql, "%s%s", separator, key);
        separator = ", ";
    }
    appendStringInfoChar(&sql, ')');
    return sql.data;
}

bool is_invalid_index_of(Oid index, Oid table)
{
    HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
    if (!HeapTupleIsValid(tuple))
        return false;
    const Form_pg_index state = reinterpret_cast<Form_pg_index>(GETSTRUCT(tuple));
    const bool invalid = state->indrelid == table && !state->indisvalid;
    ReleaseSysCache(tuple);
    return invalid;
}

// What CREATE INDEX CONCURRENTLY leaves when it fails has the name that we want.
void drop_leftover(Installation &installation, const IndexForm &wanted, bool build_now)
{
    const char *object = psprintf("index %s", table_name(wanted.name));
    if (build_now)
        run(installation, wanted.table, object, action::drop, psprintf("DROP INDEX %s;", table_name(wanted.name)));
    else
        report(installation, object, action::run_concurrently,
               psprintf("DROP INDEX CONCURRENTLY %s;", table_name(wanted.name)));
}

void add_index(Installation &installation, const IndexForm &wanted, bool build_now)
{
    const Oid table = find_table(installation, wanted.table);
    if (table_has_index(table, wanted))
        return;
    const Oid namesake = find_table(installation, wanted.name);
    const bool is_leftover = OidIsValid(namesake) && is_invalid_index_of(namesake, table);
    if (is_leftover && may_be_indexing(table))
        return;
    if (is_leftover)
        drop_leftover(installation, wanted, build_now);
    // Something else of this name: the server chooses another.
    const char *name = is_leftover || !OidIsValid(namesake) ? wanted.name : nullptr;
    const char *object = name != nullptr ? psprintf("index %s", table_name(name))
                                         : psprintf("index of table %s", table_name(wanted.table));
    if (!build_now)
        report(installation, object, action::run_concurrently, create_index(wanted, name, true));
    else if (wanted.kind == IndexKind::plain || name == nullptr)
        run(installation, wanted.table, object, action::create, create_index(wanted, name, false));
    else
        run(installation, wanted.table, object, action::create,
            psprintf("ALTER TABLE %s ADD %s;", table_name(wanted.table), key_clause(wanted)));
}

void add_indexes(Installation &installation, const char *table, bool build_now)
{
    for (const IndexForm &wanted : horde_indexes)
        if (strcmp(wanted.table, table) == 0)
            add_index(installation, wanted, build_now);
}

// ---------------------------------------------------------------------------------------------
// Counters

void append_comparison(StringInfo sql, const IndexForm &key, const char *format)
{
    const char *separator = "";
    for (const char *column : key.key)
        if (column != nullptr) {
            appendStringInfoString(sql, separator);
            appendStringInfo(sql, format, column, column);
            separator = " AND ";
        }
}

const char *key_list(const IndexForm &key)
{
    return key.key[2] != nullptr ? psprintf("%s, %s, %s", key.key[0], key.key[1], key.key[2])
                                 : psprintf("%s, %s", key.key[0], key.key[1]);
}

// Rows whose key has a NULL are no duplicates: a unique index holds any number of them.
const char *duplicates_query(const IndexForm &key)
{
    StringInfoData sql;
    initStringInfo(&sql);
    appendStringInfo(&sql, "SELECT %s, min(id) AS kept_id, sum(value) AS total FROM %s WHERE ", key_list(key),
                     table_name(key.table));
    append_comparison(&sql, key, "%s IS NOT NULL");
    appendStringInfo(&sql, " GROUP BY %s HAVING count(*) > 1", key_list(key));
    return sql.data;
}

// Locked first, so that the sum is of what is deleted: the application adds to these rows.
const char *consolidation(const IndexForm &key)
{
    StringInfoData sql;
    initStringInfo(&sql);
    appendStringInfo(&sql,
                     "LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE; WITH duplicates AS (%s), deleted AS (DELETE FROM %s c "
                     "USING duplicates d WHERE ",
                     table_name(key.table), duplicates_query(key), table_name(key.table));
    append_comparison(&sql, key, "c.%s = d.%s");
    appendStringInfo(&sql,
                     " AND c.id <> d.kept_id) UPDATE %s c SET value = d.total FROM duplicates d"
                     " WHERE c.id = d.kept_id;",
                     table_name(key.table));
    return sql.data;
}

void prepare_counters(Installation &installation, const char *table)
{
    for (const IndexForm &key : horde_indexes) {
        if (strcmp(key.table, table) != 0 || table_has_index(find_table(installation, table), key))
            continue;
        if (finds_rows(installation, table, psprintf("%s LIMIT 1;", duplicates_query(key))))
            run(installation, table, psprintf("table %s", table_name(table)), action::consolidate, consolidation(key));
    }
    add_indexes(installation, table, !holds_rows(installation, table));
}

// ---------------------------------------------------------------------------------------------
// The whole

void install_table(Installation &installation, const TableForm &form)
{
    const Oid table = find_table(installation, form.name);
    if (!OidIsValid(table)) {
        create_table(installation, form);
        add_indexes(installation, form.name, true);
        return;
    }
    require_ordinary_table(table, form.name);
    const bool has_rows = holds_rows(installation, form.name);
    const bool large = has_rows && !form.one_row;
    add_columns(installation, form, table, has_rows);
    add_constraints(installation, form, table, large);
    if (form.storage != nullptr && !has_vacuum_settings(table))
        run(installation, form.name, psprintf("table %s", table_name(form.name)), action::set,
            psprintf("ALTER TABLE %s SET (%s);", table_name(form.name), form.storage));
    add_indexes(installation, form.name, !large);
}

void insert_row(Installation &installation, const char *table, const char *columns, const char *values)
{
    if (OidIsValid(find_table(installation, table)) &&
        finds_rows(installation, table, psprintf("SELECT FROM %s WHERE id = 1;", table_name(table))))
        return;
    run(installation, table, psprintf("row 1 of %s", table_name(table)), action::insert,
        psprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (id) DO NOTHING;", table_name(table), columns, values));
}

// Conditions on a column of an unfit type could not even be compared with those that are there.
void require_fit_types()
{
    ListCell *cell;
    foreach (cell, schema_faults()) {
        const Fault *fault = static_cast<const Fault *>(lfirst(cell));
        if (fault->code == ERRCODE_DATATYPE_MISMATCH)
            ereport(ERROR, (errcode(fault->code), errmsg_internal("%s", fault->message), errhint("%s", fault->hint)));
    }
}

void install(Installation &installation)
{
    require_fit_types();
    // Counters first: adding up may take long, and what comes after it locks users.
    for (const char *table : counter_tables)
        prepare_counters(installation, table);
    add_indexes(installation, "users", !holds_rows(installation, "users"));
    for (const TableForm &form : ledger_tables)
        install_table(installation, form);
    insert_row(installation, "kudos_ledger_applier_state", "id", "1");
    insert_row(installation, "kudos_ledger_control", "id, mode, changed_at", "1, 'shadow', now() AT TIME ZONE 'utc'");
}

void require_application(const Installation &installation)
{
    if (!OidIsValid(installation.namespace_oid))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_SCHEMA), errmsg("schema \"%s\" does not exist", kudos_schema),
                        errhint("Set kudos_projector.schema to the schema of the Horde's tables.")));
    for (const char *table : {"users", "user_stats", "worker_stats", "user_records"}) {
        const Oid found = find_table(installation, table);
        if (!OidIsValid(found))
            ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                            errmsg("table \"%s\" does not exist in schema \"%s\"", table, kudos_schema),
                            errdetail("This function adds the accounting tables to a database of the Horde; it does "
                                      "not make one."),
                            errhint("Set kudos_projector.schema to the schema of the Horde's tables.")));
        require_ordinary_table(found, table);
    }
}

// The owner of kudos_ledger, as everywhere. Before there is one: the owner of users, whom the new
// tables should belong to, if the caller could become that role anyway. Otherwise nothing is as much as
// looked at, which would evaluate what conditions of indexes call with the rights of the caller.
Oid choose_role(const Installation &installation)
{
    const Oid ledger = find_table(installation, "kudos_ledger");
    if (OidIsValid(ledger))
        return owner_of_relation(ledger);
    for (const char *table : counter_tables)
        (void)role_for(installation, table);
    return role_for(installation, "users");
}

// Two of these at once would get into each other's way; folding goes on.
void lock_installation()
{
    const Oid extension = get_extension_oid("kudos_projector", false);
    LockDatabaseObject(ExtensionRelationId, extension, 0, ShareUpdateExclusiveLock);
}

} // namespace
} // namespace kudos::server

Datum kudos_entry_install_ledger(FunctionCallInfo fcinfo)
{
    using namespace kudos::server;
    const bool dry_run = PG_ARGISNULL(0) || PG_GETARG_BOOL(0); // when in doubt, only look
    if (!dry_run) {
        PreventCommandIfReadOnly("kudos_install_ledger()");
        PreventCommandIfParallelMode("kudos_install_ledger()");
        PreventCommandDuringRecovery("kudos_install_ledger()");
        lock_installation();
    }
    InitMaterializedSRF(fcinfo, 0);
    Installation installation{reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo),
                              dry_run,
                              0,
                              get_namespace_oid(kudos_schema, true),
                              GetUserId(),
                              GetUserId()};
    require_application(installation);
    installation.role = choose_role(installation);
    const Acting acting = act_as(installation.role);
    limit_lock_waits();
    SPI_connect();
    install(installation);
    SPI_finish();
    stop_acting(acting);
    return Datum{0};
}
