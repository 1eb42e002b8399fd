#include "schema.hpp"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "rewrite/prs2lock.h"
#include "rewrite/rewriteDefine.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"
}

#include "memory.hpp"
#include "session.hpp"

namespace kudos::server {
namespace {

constexpr const char *extension_name = "kudos_projector";

struct TargetDescription {
    const char *table;
    const char *remainder;
    int columns;
    const char *column[max_value_columns];
};

// In the order of the enum Table.
constexpr TargetDescription descriptions[table_count] = {
    {"users", "kudos_remainder_users", 2, {"kudos", "evaluating_kudos"}},
    {"user_stats", "kudos_remainder_user_stats", 1, {"value"}},
    {"worker_stats", "kudos_remainder_worker_stats", 1, {"value"}},
    {"user_records", "kudos_remainder_user_records", 1, {"value"}},
    {"workers", "kudos_remainder_workers", 3, {"kudos", "contributions", "fulfilments"}},
    {"teams", "kudos_remainder_teams", 3, {"kudos", "contributions", "fulfilments"}},
};

MemoryContext schema_context = nullptr;
Schema *cached = nullptr;
char *cached_for = nullptr; // the setting that it was resolved for
uint64 generations = 0;
bool callbacks_registered = false;
bool stale = true;

void relation_changed(Datum, Oid)
{
    // Any relation may be one of ours, or one that is about to take its name; resolving costs a few
    // hundred microseconds, and a quiet server invalidates rarely.
    stale = true;
}

void catalog_changed(Datum, int, uint32)
{
    stale = true;
}

void register_callbacks()
{
    if (callbacks_registered)
        return;
    CacheRegisterRelcacheCallback(relation_changed, 0);
    CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_changed, 0);
    CacheRegisterSyscacheCallback(AUTHOID, catalog_changed, 0);
    CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, catalog_changed, 0);
    callbacks_registered = true;
}

// ---------------------------------------------------------------------------------------------
// Faults

// Where kudos_check_schema() collects; null for a cycle, which stops at the first fault.
List **collected = nullptr;

// Raises the fault, or collects it: then the caller goes on with what is there.
void report(const Fault &fault)
{
    if (collected != nullptr) {
        Fault *kept = allocate<Fault>(1).data();
        *kept = fault;
        *collected = lappend(*collected, kept);
        return;
    }
    ereport(ERROR, (errcode(fault.code), errmsg_internal("%s", fault.message),
                    fault.detail != nullptr ? errdetail_internal("%s", fault.detail) : 0, errhint("%s", fault.hint)));
}

// ---------------------------------------------------------------------------------------------
// Relations and their columns

const char *qualified(const char *schema, const char *table)
{
    return quote_qualified_identifier(schema, table);
}

const char *name_of(Relation relation)
{
    return qualified(kudos_schema, RelationGetRelationName(relation));
}

const char *table_object(const char *table)
{
    return psprintf("table %s", qualified(kudos_schema, table));
}

const char *column_object(Relation relation, const char *column)
{
    return psprintf("column %s.%s", name_of(relation), quote_identifier(column));
}

// A crash empties it: what was folded into it would be lost, though its rows are marked.
void reject_unlogged(Relation relation)
{
    if (relation->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT)
        return;
    report({.code = ERRCODE_FEATURE_NOT_SUPPORTED,
            .object = table_object(RelationGetRelationName(relation)),
            .message =
                psprintf("table \"%s.%s\" is unlogged or temporary", kudos_schema, RelationGetRelationName(relation)),
            .detail = "A crash would empty it, and what was folded would be lost.",
            .hint = psprintf("ALTER TABLE %s SET LOGGED;", name_of(relation))});
}

// Rows of a child count as rows of the table, but no unique index and no foreign key spans both: one key
// could stand there twice, and be written twice.
void reject_children(Relation relation)
{
    const List *children =
        relation->rd_rel->relhassubclass ? find_inheritance_children(RelationGetRelid(relation), AccessShareLock) : NIL;
    if (children == NIL)
        return;
    const Oid child = linitial_oid(children);
    report({.code = ERRCODE_FEATURE_NOT_SUPPORTED,
            .object = table_object(RelationGetRelationName(relation)),
            .message = psprintf("table \"%s.%s\" has tables that inherit from it", kudos_schema,
                                RelationGetRelationName(relation)),
            .detail = "Their rows would be taken for its own.",
            .hint = psprintf("ALTER TABLE %s NO INHERIT %s;",
                             qualified(get_namespace_name(get_rel_namespace(child)), get_rel_name(child)),
                             name_of(relation))});
}

// What a rule does instead may even return what was meant to be stored.
void reject_instead_rules(Relation relation)
{
    if (relation->rd_rules == nullptr)
        return;
    for (int i = 0; i < relation->rd_rules->numLocks; i++) {
        const RewriteRule *rule = relation->rd_rules->rules[i];
        const bool fires = rule->enabled == RULE_FIRES_ON_ORIGIN || rule->enabled == RULE_FIRES_ALWAYS;
        if (!rule->isInstead || !fires || (rule->event != CMD_UPDATE && rule->event != CMD_INSERT))
            continue;
        report({.code = ERRCODE_FEATURE_NOT_SUPPORTED,
                .object = table_object(RelationGetRelationName(relation)),
                .message = psprintf("table \"%s.%s\" has a rule that does something else instead of %s", kudos_schema,
                                    RelationGetRelationName(relation), rule->event == CMD_UPDATE ? "UPDATE" : "INSERT"),
                .detail = "What the projector writes would not be stored.",
                .hint = "SELECT remedy FROM kudos_check_schema() WHERE object LIKE 'rule %';"});
        return;
    }
}

// Null: it is not there, or not what it has to be.
Relation open_table(Oid namespace_oid, const char *table)
{
    const Oid relation_oid = get_relname_relid(table, namespace_oid);
    if (!OidIsValid(relation_oid)) {
        report({.code = ERRCODE_UNDEFINED_TABLE,
                .object = table_object(table),
                .message = psprintf("table \"%s\" does not exist in schema \"%s\"", table, kudos_schema),
                .hint = "Set kudos_projector.schema to the schema of the Horde's tables, or create the table with the "
                        "Horde's own migrations."});
        return nullptr;
    }
    Relation relation = relation_open(relation_oid, AccessShareLock);
    if (relation->rd_rel->relkind == RELKIND_RELATION) {
        reject_unlogged(relation);
        reject_children(relation);
        reject_instead_rules(relation);
        return relation;
    }
    report({.code = ERRCODE_FEATURE_NOT_SUPPORTED,
            .object = table_object(table),
            .message = psprintf("\"%s.%s\" is not an ordinary table", kudos_schema, table),
            .detail = relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE
                          ? "Partitioned tables are not supported: marking a row would move it."
                          : "Views and foreign tables are not supported.",
            .hint = "Use an ordinary table of this name."});
    relation_close(relation, AccessShareLock);
    return nullptr;
}

Form_pg_attribute find_column(Relation relation, const char *name)
{
    TupleDesc columns = RelationGetDescr(relation);
    for (int i = 0; i < columns->natts; i++) {
        Form_pg_attribute column = TupleDescAttr(columns, i);
        if (!column->attisdropped && strcmp(NameStr(column->attname), name) == 0)
            return column;
    }
    return nullptr;
}

// Null: there is none.
Form_pg_attribute require_column(Relation relation, const char *name)
{
    Form_pg_attribute column = find_column(relation, name);
    if (column == nullptr)
        report({.code = ERRCODE_UNDEFINED_COLUMN,
                .object = column_object(relation, name),
                .message = psprintf("column \"%s\" of table \"%s.%s\" does not exist", name, kudos_schema,
                                    RelationGetRelationName(relation)),
                .hint = "Bring the database to the Horde's current schema; docs/reference/schema.md lists what the "
                        "projector needs."});
    return column;
}

void reject_type(Relation relation, Form_pg_attribute column, const char *wanted)
{
    const char *name = NameStr(column->attname);
    report({.code = ERRCODE_DATATYPE_MISMATCH,
            .object = column_object(relation, name),
            .message = psprintf("column \"%s\" of table \"%s.%s\" has type %s, which the projector cannot use", name,
                                kudos_schema, RelationGetRelationName(relation),
                                format_type_with_typemod(column->atttypid, column->atttypmod)),
            .hint = psprintf("Use ALTER TABLE %s ALTER COLUMN %s TYPE ... to give it %s.", name_of(relation),
                             quote_identifier(name), wanted)});
}

struct BaseType {
    Oid oid;
    int32 modifier;
};

BaseType base_type(Form_pg_attribute column)
{
    BaseType base{InvalidOid, column->atttypmod};
    base.oid = getBaseTypeAndTypmod(column->atttypid, &base.modifier);
    return base;
}

bool is_integer(Oid type)
{
    return type == INT2OID || type == INT4OID || type == INT8OID;
}

bool is_text(Oid type)
{
    return type == TEXTOID || type == VARCHAROID;
}

enum class Family { integer, uuid, text, boolean, timestamp, json, amount };

bool belongs(Oid type, Family family)
{
    switch (family) {
    case Family::integer:
        return is_integer(type);
    case Family::uuid:
        return type == UUIDOID;
    case Family::text:
        return is_text(type);
    case Family::boolean:
        return type == BOOLOID;
    case Family::timestamp:
        return type == TIMESTAMPOID;
    case Family::json:
        return type == JSONBOID;
    case Family::amount:
        return type == NUMERICOID;
    }
    return false;
}

const char *family_name(Family family)
{
    switch (family) {
    case Family::integer:
        return "an integer type";
    case Family::uuid:
        return "type uuid";
    case Family::text:
        return "type varchar or text";
    case Family::boolean:
        return "type boolean";
    case Family::timestamp:
        return "type timestamp without time zone";
    case Family::json:
        return "type jsonb";
    case Family::amount:
        return "type numeric(20,2)";
    }
    return "";
}

void reject_generated(Relation relation, Form_pg_attribute column)
{
    if (column->attgenerated == '\0')
        return;
    const char *name = NameStr(column->attname);
    report({.code = ERRCODE_GENERATED_ALWAYS,
            .object = column_object(relation, name),
            .message = psprintf("column \"%s\" of table \"%s.%s\" is generated", name, kudos_schema,
                                RelationGetRelationName(relation)),
            .hint = psprintf("Use ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION.", name_of(relation),
                             quote_identifier(name))});
}

// Names that we tell apart would be one there, or match what they do not equal.
void reject_loose_collation(Relation relation, Form_pg_attribute column)
{
    if (!OidIsValid(column->attcollation) || get_collation_isdeterministic(column->attcollation))
        return;
    const char *name = NameStr(column->attname);
    report({.code = ERRCODE_FEATURE_NOT_SUPPORTED,
            .object = column_object(relation, name),
            .message = psprintf("column \"%s\" of table \"%s.%s\" has a nondeterministic collation", name, kudos_schema,
                                RelationGetRelationName(relation)),
            .hint = psprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s COLLATE \"C\";", name_of(relation),
                             quote_identifier(name), format_type_with_typemod(column->atttypid, column->atttypmod))});
}

// Null: there is none of that type.
Form_pg_attribute require_column(Relation relation, const char *name, Family family)
{
    Form_pg_attribute column = require_column(relation, name);
    if (column == nullptr)
        return nullptr;
    const bool fits = belongs(base_type(column).oid, family);
    if (!fits)
        reject_type(relation, column, family_name(family));
    reject_generated(relation, column);
    reject_loose_collation(relation, column);
    return fits ? column : nullptr;
}

int32 width(Form_pg_attribute column)
{
    if (column == nullptr)
        return PG_INT32_MAX;
    const BaseType base = base_type(column);
    return base.oid == VARCHAROID && base.modifier >= static_cast<int32>(VARHDRSZ)
               ? base.modifier - static_cast<int32>(VARHDRSZ)
               : PG_INT32_MAX;
}

// A NOT NULL column that we do not fill and nothing else does makes every insert fail.
void require_insertable(Relation relation, std::initializer_list<const char *> filled)
{
    TupleDesc columns = RelationGetDescr(relation);
    for (int i = 0; i < columns->natts; i++) {
        Form_pg_attribute column = TupleDescAttr(columns, i);
        if (column->attisdropped || !column->attnotnull || column->atthasdef || column->attidentity != '\0')
            continue;
        bool known = false;
        for (const char *name : filled)
            known = known || strcmp(name, NameStr(column->attname)) == 0;
        if (!known)
            report({.code = ERRCODE_NOT_NULL_VIOLATION,
                    .object = column_object(relation, NameStr(column->attname)),
                    .message = psprintf("column \"%s\" of table \"%s.%s\" is NOT NULL and has no default",
                                        NameStr(column->attname), kudos_schema, RelationGetRelationName(relation)),
                    .detail = "The projector inserts rows there and does not know the column.",
                    .hint = psprintf("Use ALTER TABLE %s ALTER COLUMN %s SET DEFAULT ..., or DROP NOT NULL.",
                                     name_of(relation), quote_identifier(NameStr(column->attname)))});
    }
}

// ---------------------------------------------------------------------------------------------
// Value columns

Cents power_of_ten(int exponent)
{
    Cents power = 1;
    while (exponent-- > 0)
        power *= 10;
    return power;
}

ColumnType integer_column(Cents lowest, Cents highest)
{
    return {.integer = true, .lowest = lowest * cents_per_unit, .highest = highest * cents_per_unit};
}

// numeric(p,0) is an integer of p digits; from two places on, the column holds the value itself.
bool numeric_column(int32 modifier, ColumnType *type)
{
    constexpr int widest = 28; // digits of an unconstrained numeric that we care to fill
    if (modifier < static_cast<int32>(VARHDRSZ)) {
        *type = {.integer = false, .lowest = -power_of_ten(widest), .highest = power_of_ten(widest)};
        return true;
    }
    const int32 packed = modifier - static_cast<int32>(VARHDRSZ);
    const int precision = packed >> 16 & 0xffff;
    const int scale = packed & 0x7ff;
    if (scale != 0 && (scale < 2 || scale > precision))
        return false;
    const int whole_digits = precision - scale < widest ? precision - scale : widest;
    const Cents beyond = power_of_ten(whole_digits);
    if (scale == 0)
        *type = integer_column(-(beyond - 1), beyond - 1);
    else
        *type = {.integer = false, .lowest = -(beyond * cents_per_unit - 1), .highest = beyond * cents_per_unit - 1};
    return true;
}

// Whole kudos are exact in a float8 up to 2^53 of them; cents, up to 2^46 kudos.
constexpr Cents float8_highest = (Cents{1} << 53) * cents_per_unit;

ValueColumn value_column(Relation relation, const char *name)
{
    ValueColumn value{};
    Form_pg_attribute column = require_column(relation, name);
    if (column == nullptr)
        return value;
    reject_generated(relation, column);
    const BaseType base = base_type(column);
    value.name = name; // needs no quotes; it is data as well, in snapshots, and must not depend on a setting
    value.type_name = format_type_extended(column->atttypid, column->atttypmod,
                                           FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY);
    value.as_text = !is_integer(base.oid);
    value.binary = base.oid == FLOAT8OID;
    switch (base.oid) {
    case INT2OID:
        value.type = integer_column(PG_INT16_MIN, PG_INT16_MAX);
        return value;
    case INT4OID:
        value.type = integer_column(PG_INT32_MIN, PG_INT32_MAX);
        return value;
    case INT8OID:
        value.type = integer_column(PG_INT64_MIN, PG_INT64_MAX);
        return value;
    case FLOAT8OID:
        value.type = {.integer = false, .lowest = -float8_highest, .highest = float8_highest};
        return value;
    case NUMERICOID:
        if (numeric_column(base.modifier, &value.type))
            return value;
        break;
    default:
        break;
    }
    reject_type(relation, column, "an integer type, double precision, or numeric with no or at least two places");
    return value;
}

// ---------------------------------------------------------------------------------------------
// Restores

// Whether the ledger that is being looked at refers to users. pg_restore adds foreign keys last of
// all, indexes shortly before: while this one is missing, they may be missing for the same reason.
bool restored = true;

bool references_users(Relation ledger)
{
    ListCell *cell;
    foreach (cell, RelationGetFKeyList(ledger)) {
        const char *referenced = get_rel_name(lfirst_node(ForeignKeyCacheInfo, cell)->confrelid);
        if (referenced != nullptr && strcmp(referenced, "users") == 0)
            return true;
    }
    return false;
}

void report_restore()
{
    report({.code = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            .object = table_object("kudos_ledger"),
            .message = psprintf("table %s has no foreign key to users", qualified(kudos_schema, "kudos_ledger")),
            .detail = "A restore seems to be under way; nothing is folded until it is complete.",
            .hint = psprintf("Let the restore finish, or ALTER TABLE %s ADD FOREIGN KEY (user_id) REFERENCES %s "
                             "ON DELETE RESTRICT;",
                             qualified(kudos_schema, "kudos_ledger"), qualified(kudos_schema, "users"))});
}

// The one reason for all that a restore has not brought yet; who collects faults wants each.
void raise_restore_instead()
{
    if (!restored && collected == nullptr)
        report_restore();
}

// ---------------------------------------------------------------------------------------------
// Subscriptions

// Rows that a subscription brings are folded by their publisher, whose results it brings too. Ids are
// assigned by each server for itself: what we inserted here would collide with what he inserts, and
// stop the subscription.
bool is_subscribed(Oid relation)
{
    Relation catalog = relation_open(SubscriptionRelRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relation));
    SysScanDesc scan = systable_beginscan(catalog, SubscriptionRelSrrelidSrsubidIndexId, true, nullptr, 1, &key);
    const bool found = HeapTupleIsValid(systable_getnext(scan));
    systable_endscan(scan);
    relation_close(catalog, AccessShareLock);
    return found;
}

void report_subscription(const char *table)
{
    report({.code = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            .object = table_object(table),
            .message = psprintf("table %s is filled by a subscription", qualified(kudos_schema, table)),
            .detail = "Its rows are folded where they come from; two servers that fold the same rows stop the "
                      "subscription.",
            .hint = "Let the publisher fold; when this server takes over, DROP SUBSCRIPTION first."});
}

// ---------------------------------------------------------------------------------------------
// Indexes

bool index_usable(Relation index)
{
    return index->rd_index->indisvalid && index->rd_index->indisready && index->rd_index->indislive;
}

// What both claims promise of their rows, as the planner will see it. NIL: a flag is missing.
List *queue_clauses(Relation relation, std::initializer_list<const char *> flags)
{
    List *clauses = NIL;
    for (const char *flag : flags) {
        Form_pg_attribute column = require_column(relation, flag, Family::boolean);
        if (column == nullptr)
            return NIL;
        Var *variable = makeVar(1, column->attnum, BOOLOID, -1, InvalidOid, 0);
        BooleanTest *is_false = makeNode(BooleanTest);
        is_false->arg = reinterpret_cast<Expr *>(variable);
        is_false->booltesttype = IS_FALSE;
        is_false->location = -1;
        clauses = lappend(clauses, is_false);
        clauses = lappend(clauses, make_notclause(reinterpret_cast<Expr *>(copyObjectImpl(variable))));
    }
    return clauses;
}

bool is_queue_index(Relation index, List *clauses)
{
    List *predicate = RelationGetIndexPredicate(index);
    return index_usable(index) && predicate != NIL && index->rd_rel->relam == BTREE_AM_OID &&
           predicate_implied_by(predicate, clauses, false);
}

// The partial indexes that hold every queued row: with one on (id) a claim costs what is queued,
// whatever the archive has grown to.
QueueIndexes queue_indexes(Relation relation, std::initializer_list<const char *> flags, const char *predicate)
{
    List *clauses = queue_clauses(relation, flags);
    Form_pg_attribute id_column = require_column(relation, "id", Family::integer);
    if (clauses == NIL || id_column == nullptr)
        return {};
    const AttrNumber id = id_column->attnum;
    List *by_id = NIL;
    List *others = NIL;
    ListCell *cell;
    foreach (cell, RelationGetIndexList(relation)) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        if (is_queue_index(index, clauses)) {
            if (index->rd_index->indkey.values[0] == id)
                by_id = lappend_oid(by_id, RelationGetRelid(index));
            else
                others = lappend_oid(others, RelationGetRelid(index));
        }
        index_close(index, AccessShareLock);
    }
    if (by_id == NIL) {
        raise_restore_instead();
        report({.code = ERRCODE_UNDEFINED_OBJECT,
                .object = table_object(RelationGetRelationName(relation)),
                .message = psprintf("table \"%s.%s\" has no valid index on its unapplied rows", kudos_schema,
                                    RelationGetRelationName(relation)),
                .detail = "Without it every cycle would read the whole archive.",
                .hint = psprintf("CREATE INDEX CONCURRENTLY ON %s (id) WHERE %s;", name_of(relation), predicate)});
        return {};
    }
    QueueIndexes indexes{list_length(by_id), 0, nullptr};
    List *all = list_concat(by_id, others);
    indexes.oid = static_cast<Oid *>(palloc(sizeof(Oid) * static_cast<Size>(list_length(all))));
    foreach (cell, all)
        indexes.oid[indexes.count++] = lfirst_oid(cell);
    return indexes;
}

bool keys_are(Relation index, Relation relation, std::initializer_list<const char *> columns)
{
    if (index->rd_index->indnkeyatts != static_cast<int>(columns.size()))
        return false;
    for (const char *name : columns) {
        const AttrNumber number = find_column(relation, name)->attnum;
        bool among = false;
        for (int i = 0; i < index->rd_index->indnkeyatts; i++)
            among = among || index->rd_index->indkey.values[i] == number;
        if (!among)
            return false;
    }
    return true;
}

// ON CONFLICT takes every unique index on the columns as an arbiter, and no deferrable one.
void reject_deferrable(Relation relation, Relation index)
{
    const char *name = RelationGetRelationName(index);
    report({.code = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            .object = table_object(RelationGetRelationName(relation)),
            .message = psprintf("unique constraint \"%s\" of table \"%s.%s\" is deferrable", name, kudos_schema,
                                RelationGetRelationName(relation)),
            .detail = "INSERT ... ON CONFLICT cannot use it.",
            .hint = psprintf("ALTER TABLE %s DROP CONSTRAINT %s; and add it again without DEFERRABLE.",
                             name_of(relation), quote_identifier(name))});
}

void require_unique_index(Relation relation, std::initializer_list<const char *> columns)
{
    for (const char *name : columns)
        if (find_column(relation, name) == nullptr)
            return; // reported already
    bool served = false;
    ListCell *cell;
    foreach (cell, RelationGetIndexList(relation)) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        const bool serves = index->rd_index->indisunique && index_usable(index) &&
                            RelationGetIndexPredicate(index) == NIL && keys_are(index, relation, columns);
        if (serves && !index->rd_index->indimmediate)
            reject_deferrable(relation, index);
        served = served || serves;
        index_close(index, AccessShareLock);
    }
    if (served)
        return;
    raise_restore_instead();
    StringInfoData list;
    initStringInfo(&list);
    for (const char *name : columns)
        appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "", quote_identifier(name));
    report({.code = ERRCODE_UNDEFINED_OBJECT,
            .object = table_object(RelationGetRelationName(relation)),
            .message = psprintf("table \"%s.%s\" has no valid unique index on (%s)", kudos_schema,
                                RelationGetRelationName(relation), list.data),
            .detail = "Rows of one key could stand there twice, and be counted twice.",
            .hint = psprintf("Remove duplicate rows, then CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s), or REINDEX "
                             "INDEX CONCURRENTLY one that is INVALID.",
                             name_of(relation), list.data)});
}

// ---------------------------------------------------------------------------------------------
// Access

// Row security that hid rows would fold short without a sign; missing privileges fail halfway.
void require_access(Relation relation, Oid role, AclMode needed)
{
    if (!OidIsValid(role))
        return; // there is no kudos_ledger, which was reported already
    const char *table = RelationGetRelationName(relation);
    const char *role_name = GetUserNameFromId(role, false);
    if (check_enable_rls(RelationGetRelid(relation), role, true) == RLS_ENABLED)
        report({.code = ERRCODE_INSUFFICIENT_PRIVILEGE,
                .object = table_object(table),
                .message =
                    psprintf("row security of table \"%s.%s\" applies to role \"%s\"", kudos_schema, table, role_name),
                .detail = "The projector acts as this role, the owner of kudos_ledger, and must see every row.",
                .hint = psprintf("ALTER TABLE %s NO FORCE ROW LEVEL SECURITY and make the role its owner, or ALTER "
                                 "ROLE %s BYPASSRLS.",
                                 name_of(relation), quote_identifier(role_name))});
    const struct {
        AclMode mode;
        const char *name;
    } privileges[] = {{ACL_SELECT, "SELECT"}, {ACL_INSERT, "INSERT"}, {ACL_UPDATE, "UPDATE"}};
    for (const auto &privilege : privileges)
        if ((needed & privilege.mode) != 0 &&
            pg_class_aclcheck(RelationGetRelid(relation), role, privilege.mode) != ACLCHECK_OK)
            report({.code = ERRCODE_INSUFFICIENT_PRIVILEGE,
                    .object = table_object(table),
                    .message = psprintf("role \"%s\" has no %s privilege on table \"%s.%s\"", role_name, privilege.name,
                                        kudos_schema, table),
                    .detail = "The projector acts as this role, the owner of kudos_ledger.",
                    .hint = psprintf("GRANT %s ON %s TO %s;", privilege.name, name_of(relation),
                                     quote_identifier(role_name))});
}

// ---------------------------------------------------------------------------------------------
// Each table in turn

void resolve_ledger(Schema *schema, Relation ledger)
{
    restored = references_users(ledger);
    schema->restored = restored;
    require_column(ledger, "event_id", Family::uuid);
    require_column(ledger, "user_id", Family::integer);
    require_column(ledger, "entry_type", Family::text);
    require_column(ledger, "escrow", Family::boolean);
    require_column(ledger, "amount", Family::amount);
    require_column(ledger, "detail", Family::json);
    require_column(ledger, "created", Family::timestamp);
    require_insertable(ledger, {"created", "event_id", "entry_type", "user_id", "escrow", "amount", "applied"});
    schema->ledger_queue = queue_indexes(ledger, {"applied"}, "applied IS FALSE");
    schema->ledger = RelationGetRelid(ledger);
    schema->ledger_subscribed = is_subscribed(schema->ledger);
    schema->ledger_owner = ledger->rd_rel->relowner;
    schema->ledger_name = qualified(kudos_schema, "kudos_ledger");
    require_access(ledger, schema->ledger_owner, ACL_SELECT | ACL_INSERT | ACL_UPDATE);
}

bool require_quarantine_columns(Relation stats)
{
    if (find_column(stats, "quarantined") != nullptr && find_column(stats, "quarantine_reason") != nullptr &&
        find_column(stats, "quarantined_at") != nullptr)
        return true;
    report({.code = ERRCODE_UNDEFINED_COLUMN,
            .object = table_object("kudos_stat_events"),
            .message = psprintf("table \"%s.kudos_stat_events\" has no quarantine columns", kudos_schema),
            .detail = "The schema is older than 5.1.9, or its migration stopped halfway.",
            .hint = psprintf("ALTER TABLE %s ADD COLUMN IF NOT EXISTS quarantined boolean NOT NULL DEFAULT false, ADD "
                             "COLUMN IF NOT EXISTS quarantine_reason varchar(64), ADD COLUMN IF NOT EXISTS "
                             "quarantined_at timestamp;",
                             name_of(stats))});
    return false;
}

constexpr int32 longest_reason = 25; // invalid_stat_contribution

void resolve_quarantine(Schema *schema, Relation stats)
{
    if (!require_quarantine_columns(stats))
        return;
    Form_pg_attribute reason = require_column(stats, "quarantine_reason", Family::text);
    if (reason != nullptr && width(reason) < longest_reason)
        reject_type(stats, reason, "type varchar(64)");
    require_column(stats, "quarantined_at", Family::timestamp);
    schema->stat_queue = queue_indexes(stats, {"applied", "quarantined"}, "applied IS FALSE AND quarantined IS FALSE");
}

void resolve_stat_events(Schema *schema, Oid namespace_oid)
{
    Relation stats = open_table(namespace_oid, "kudos_stat_events");
    if (stats == nullptr)
        return;
    resolve_quarantine(schema, stats);
    require_column(stats, "event_id", Family::uuid);
    require_column(stats, "entry_type", Family::text);
    require_column(stats, "user_id", Family::integer);
    require_column(stats, "worker_id", Family::uuid);
    require_column(stats, "team_id", Family::uuid);
    require_column(stats, "amount", Family::amount);
    require_column(stats, "unit", Family::text);
    require_column(stats, "stat_action", Family::text);
    require_column(stats, "record", Family::text);
    require_column(stats, "detail", Family::json);
    require_column(stats, "created", Family::timestamp);
    schema->stat_events = RelationGetRelid(stats);
    schema->stats_subscribed = is_subscribed(schema->stat_events);
    schema->stat_events_name = qualified(kudos_schema, "kudos_stat_events");
    require_access(stats, schema->ledger_owner, ACL_SELECT | ACL_UPDATE);
    relation_close(stats, AccessShareLock);
}

void check_target_keys(Schema *schema, Table table, Relation relation)
{
    switch (table) {
    case Table::users:
        require_column(relation, "id", Family::integer);
        require_column(relation, "oauth_id", Family::text);
        require_column(relation, "last_active", Family::timestamp);
        require_column(relation, "created", Family::timestamp);
        break;
    case Table::user_stats:
        require_column(relation, "id", Family::integer);
        require_column(relation, "user_id", Family::integer);
        schema->user_action_width = width(require_column(relation, "action", Family::text));
        require_unique_index(relation, {"user_id", "action"});
        require_insertable(relation, {"user_id", "action", "value"});
        break;
    case Table::worker_stats:
        require_column(relation, "id", Family::integer);
        require_column(relation, "worker_id", Family::uuid);
        schema->worker_action_width = width(require_column(relation, "action", Family::text));
        require_unique_index(relation, {"worker_id", "action"});
        require_insertable(relation, {"worker_id", "action", "value"});
        break;
    case Table::user_records: {
        require_column(relation, "id", Family::integer);
        require_column(relation, "user_id", Family::integer);
        schema->record_width = width(require_column(relation, "record", Family::text));
        Form_pg_attribute type = require_column(relation, "record_type");
        if (type != nullptr) {
            if (!type_is_enum(type->atttypid))
                reject_type(relation, type, "the enum type userrecordtypes");
            schema->record_type = type->atttypid;
            schema->record_type_name = format_type_be_qualified(type->atttypid);
        }
        require_unique_index(relation, {"user_id", "record_type", "record"});
        require_insertable(relation, {"user_id", "record_type", "record", "value"});
        break;
    }
    case Table::workers:
    case Table::teams:
        require_column(relation, "id", Family::uuid);
        break;
    case Table::reservations:
    case Table::ledger_rows:
    case Table::stat_rows:
        break;
    }
}

bool inserts_rows(Table table)
{
    return table == Table::user_stats || table == Table::worker_stats || table == Table::user_records;
}

void resolve_target(Schema *schema, Oid namespace_oid, Table table)
{
    const TargetDescription &description = descriptions[static_cast<int>(table)];
    Relation relation = open_table(namespace_oid, description.table);
    if (relation == nullptr)
        return;
    TargetTable &target = schema->target[static_cast<int>(table)];
    check_target_keys(schema, table, relation);
    target.name = qualified(kudos_schema, description.table);
    target.remainder = qualified(schema->extension_schema, description.remainder);
    target.columns = description.columns;
    for (int c = 0; c < description.columns; c++)
        target.column[c] = value_column(relation, description.column[c]);
    require_access(relation, schema->ledger_owner,
                   inserts_rows(table) ? ACL_SELECT | ACL_INSERT | ACL_UPDATE : ACL_SELECT | ACL_UPDATE);
    relation_close(relation, AccessShareLock);
}

void resolve_holds(Schema *schema, Oid namespace_oid)
{
    Relation holds = open_table(namespace_oid, "kudos_reservations");
    if (holds == nullptr)
        return;
    require_column(holds, "id", Family::uuid);
    require_column(holds, "business_id", Family::text);
    require_column(holds, "event_id", Family::uuid);
    require_column(holds, "remaining_amount", Family::amount);
    require_column(holds, "released_at", Family::timestamp);
    require_access(holds, schema->ledger_owner, ACL_SELECT | ACL_UPDATE);
    schema->reservations_name = qualified(kudos_schema, "kudos_reservations");
    relation_close(holds, AccessShareLock);
}

void resolve_state(Schema *schema, Oid namespace_oid)
{
    Relation state = open_table(namespace_oid, "kudos_ledger_applier_state");
    if (state == nullptr)
        return;
    require_column(state, "id", Family::integer);
    require_column(state, "applied_at", Family::timestamp);
    require_unique_index(state, {"id"});
    require_insertable(state, {"id", "applied_at"});
    require_access(state, schema->ledger_owner, ACL_SELECT | ACL_INSERT | ACL_UPDATE);
    schema->state_name = qualified(kudos_schema, "kudos_ledger_applier_state");
    relation_close(state, AccessShareLock);
}

void resolve_control(Schema *schema, Oid namespace_oid)
{
    Relation control = open_table(namespace_oid, "kudos_ledger_control");
    if (control == nullptr)
        return;
    require_column(control, "id", Family::integer);
    require_column(control, "mode", Family::text);
    require_column(control, "changed_at", Family::timestamp);
    require_unique_index(control, {"id"});
    require_access(control, schema->ledger_owner, ACL_SELECT | ACL_INSERT | ACL_UPDATE);
    schema->control_name = qualified(kudos_schema, "kudos_ledger_control");
    relation_close(control, AccessShareLock);
}

void resolve_trust(Schema *schema, Oid namespace_oid)
{
    schema->transfers_name = qualified(kudos_schema, "kudos_transfers");
    Relation roles = open_table(namespace_oid, "user_roles");
    if (roles == nullptr)
        return;
    require_column(roles, "user_id", Family::integer);
    require_column(roles, "user_role");
    require_column(roles, "value", Family::boolean);
    require_unique_index(roles, {"user_id", "user_role"});
    require_insertable(roles, {"user_id", "user_role", "value"});
    require_access(roles, schema->ledger_owner, ACL_SELECT | ACL_INSERT | ACL_UPDATE);
    schema->user_roles_name = qualified(kudos_schema, "user_roles");
    relation_close(roles, AccessShareLock);

    Relation suspicions = open_table(namespace_oid, "user_suspicions");
    if (suspicions == nullptr)
        return;
    require_column(suspicions, "user_id", Family::integer);
    require_access(suspicions, schema->ledger_owner, ACL_SELECT);
    schema->user_suspicions_name = qualified(kudos_schema, "user_suspicions");
    relation_close(suspicions, AccessShareLock);
}

Oid extension_namespace(Oid extension)
{
    Relation catalog = relation_open(ExtensionRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(extension));
    SysScanDesc scan = systable_beginscan(catalog, ExtensionOidIndexId, true, nullptr, 1, &key);
    HeapTuple tuple = systable_getnext(scan);
    const Oid found =
        HeapTupleIsValid(tuple) ? reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple))->extnamespace : InvalidOid;
    systable_endscan(scan);
    relation_close(catalog, AccessShareLock);
    return found;
}

void resolve_extension(Schema *schema)
{
    schema->extension = get_extension_oid(extension_name, true);
    const Oid namespace_oid = OidIsValid(schema->extension) ? extension_namespace(schema->extension) : InvalidOid;
    if (!OidIsValid(namespace_oid))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("extension \"%s\" does not exist in database \"%s\"", extension_name,
                               get_database_name(MyDatabaseId)),
                        errhint("CREATE EXTENSION %s;", extension_name)));
    schema->extension_schema = get_namespace_name(namespace_oid);
}

void require_usage(Oid namespace_oid, Oid role)
{
    if (!OidIsValid(role) || may_use_schema(namespace_oid, role))
        return;
    const char *role_name = GetUserNameFromId(role, false);
    report({.code = ERRCODE_INSUFFICIENT_PRIVILEGE,
            .object = psprintf("schema %s", quote_identifier(kudos_schema)),
            .message = psprintf("role \"%s\" has no USAGE privilege on schema \"%s\"", role_name, kudos_schema),
            .hint = psprintf("GRANT USAGE ON SCHEMA %s TO %s;", quote_identifier(kudos_schema),
                             quote_identifier(role_name))});
}

void resolve_others(Schema *schema, Oid namespace_oid)
{
    resolve_stat_events(schema, namespace_oid);
    for (int table = 0; table < table_count; table++)
        resolve_target(schema, namespace_oid, static_cast<Table>(table));
    resolve_holds(schema, namespace_oid);
    resolve_state(schema, namespace_oid);
    resolve_control(schema, namespace_oid);
    resolve_trust(schema, namespace_oid);
}

Schema *resolve()
{
    Schema *schema = allocate<Schema>(1).data();
    resolve_extension(schema);
    const Oid namespace_oid = get_namespace_oid(kudos_schema, true);
    if (!OidIsValid(namespace_oid)) {
        report({.code = ERRCODE_UNDEFINED_SCHEMA,
                .object = psprintf("schema %s", quote_identifier(kudos_schema)),
                .message = psprintf("schema \"%s\" does not exist", kudos_schema),
                .hint = "Set kudos_projector.schema to the schema of the Horde's tables."});
        return schema;
    }
    restored = true;
    Relation ledger = open_table(namespace_oid, "kudos_ledger");
    if (ledger == nullptr) {
        resolve_others(schema, namespace_oid);
        return schema;
    }
    // To look at an index is to evaluate what its condition calls (relcache.c, RelationGetIndexPredicate):
    // as the owner of the ledger, never as the superuser or whoever else asks. Locked, he stays it.
    const Acting acting = act_as(ledger->rd_rel->relowner);
    resolve_ledger(schema, ledger);
    require_usage(namespace_oid, schema->ledger_owner);
    resolve_others(schema, namespace_oid);
    stop_acting(acting);
    relation_close(ledger, AccessShareLock);
    return schema;
}

} // namespace

bool lock_extension()
{
    const Oid extension = get_extension_oid(extension_name, true);
    if (!OidIsValid(extension))
        return false;
    LockDatabaseObject(ExtensionRelationId, extension, 0, AccessShareLock);
    // It may have been dropped, or dropped and created, while we waited.
    return get_extension_oid(extension_name, true) == extension;
}

const Schema &current_schema()
{
    register_callbacks();
    AcceptInvalidationMessages();
    if (!stale && cached != nullptr && strcmp(cached_for, kudos_schema) == 0)
        return *cached;

    // Cleared first: what changes while we look makes the result stale again.
    stale = false;
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "kudos schema", ALLOCSET_SMALL_SIZES);
    MemoryContext before = MemoryContextSwitchTo(context);
    Schema *schema = nullptr;
    PG_TRY();
    {
        schema = resolve();
    }
    PG_CATCH();
    {
        stale = true;
        PG_RE_THROW();
    }
    PG_END_TRY();
    schema->generation = ++generations;
    char *resolved_for = pstrdup(kudos_schema);
    MemoryContextSwitchTo(before);
    MemoryContextSetParent(context, CacheMemoryContext);
    if (schema_context != nullptr)
        MemoryContextDelete(schema_context);
    schema_context = context;
    cached = schema;
    cached_for = resolved_for;
    return *cached;
}

bool may_use_schema(Oid namespace_oid, Oid role, AclMode right)
{
#if PG_VERSION_NUM >= 160000
    return object_aclcheck(NamespaceRelationId, namespace_oid, role, right) == ACLCHECK_OK;
#else
    return pg_namespace_aclcheck(namespace_oid, role, right) == ACLCHECK_OK;
#endif
}

void require_restored(const Schema &schema)
{
    if (!schema.restored)
        report_restore();
}

void require_foldable(const Schema &schema)
{
    require_restored(schema);
    if (schema.ledger_subscribed)
        report_subscription("kudos_ledger");
    if (schema.stats_subscribed)
        report_subscription("kudos_stat_events");
}

List *schema_faults()
{
    List *faults = NIL;
    collected = &faults;
    PG_TRY();
    {
        const Schema *schema = resolve();
        if (OidIsValid(schema->ledger))
            require_foldable(*schema);
    }
    PG_FINALLY();
    {
        collected = nullptr;
    }
    PG_END_TRY();
    return faults;
}

} // namespace kudos::server
