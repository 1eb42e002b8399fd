#include "indexes.hpp"

extern "C" {
#include "access/genam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "parser/parse_clause.h"
#include "parser/parse_collate.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
}

namespace kudos::server {
namespace {

AttrNumber column_number(Relation relation, const char *name)
{
    return get_attnum(RelationGetRelid(relation), name);
}

bool has_columns(Relation relation, std::span<const char *const> names)
{
    for (const char *name : names)
        if (name != nullptr && !has_column(relation, name))
            return false;
    return true;
}

int key_count(const IndexForm &wanted)
{
    int count = 0;
    for (const char *key : wanted.key)
        count += key != nullptr ? 1 : 0;
    return count;
}

bool leads_with(Relation relation, Relation index, const IndexForm &wanted)
{
    const int keys = key_count(wanted);
    if (index->rd_index->indnkeyatts < keys || (wanted.beside_wider && index->rd_index->indnkeyatts > keys))
        return false;
    for (int k = 0; k < keys; k++)
        if (index->rd_index->indkey.values[k] != column_number(relation, wanted.key[k]))
            return false;
    return true;
}

// A unique index on the same columns in any order, not deferrable: what ON CONFLICT takes.
bool is_unique_on(Relation relation, Relation index, const IndexForm &wanted)
{
    if (!index->rd_index->indisunique || !index->rd_index->indimmediate ||
        index->rd_index->indnkeyatts != key_count(wanted))
        return false;
    for (int i = 0; i < index->rd_index->indnkeyatts; i++) {
        bool among = false;
        for (const char *key : wanted.key)
            among = among || (key != nullptr && index->rd_index->indkey.values[i] == column_number(relation, key));
        if (!among)
            return false;
    }
    return true;
}

// Holds the rows of the condition, and is as small: a condition on fewer columns would serve, but
// would grow with rows that nobody asked for.
bool holds_rows_of(Relation relation, Relation index, const IndexForm &wanted)
{
    List *predicate = RelationGetIndexPredicate(index);
    if (wanted.condition == nullptr)
        return predicate == NIL;
    if (predicate == NIL)
        return wanted.full_serves;
    List *promise = conditions_of(relation, wanted.condition->promise);
    Bitmapset *wanted_columns = nullptr;
    Bitmapset *columns = nullptr;
    pull_varattnos(reinterpret_cast<Node *>(promise), 1, &wanted_columns);
    pull_varattnos(reinterpret_cast<Node *>(predicate), 1, &columns);
    return bms_equal(columns, wanted_columns) && predicate_implied_by(predicate, promise, false);
}

bool serves(Relation relation, Relation index, const IndexForm &wanted)
{
    const Form_pg_index state = index->rd_index;
    if (!state->indisvalid || !state->indisready || !state->indislive || index->rd_rel->relam != BTREE_AM_OID)
        return false;
    if (wanted.kind != IndexKind::plain && !is_unique_on(relation, index, wanted))
        return false;
    if (wanted.kind == IndexKind::plain && !leads_with(relation, index, wanted))
        return false;
    return holds_rows_of(relation, index, wanted);
}

} // namespace

bool has_column(Relation relation, const char *name)
{
    return column_number(relation, name) != InvalidAttrNumber;
}

List *conditions_of(Relation relation, const char *condition)
{
    List *statements = raw_parser(condition, RAW_PARSE_PLPGSQL_EXPR);
    auto *select = castNode(SelectStmt, linitial_node(RawStmt, statements)->stmt);
    Node *raw = linitial_node(ResTarget, select->targetList)->val;

    ParseState *state = make_parsestate(nullptr);
    ParseNamespaceItem *item = addRangeTableEntryForRelation(state, relation, AccessShareLock, nullptr, false, true);
    addNSItemToQuery(state, item, false, true, true);
    Node *parsed = transformWhereClause(state, raw, EXPR_KIND_INDEX_PREDICATE, "WHERE");
    assign_expr_collations(state, parsed);
    free_parsestate(state);

    parsed = eval_const_expressions(nullptr, parsed);
    return make_ands_implicit(canonicalize_qual(reinterpret_cast<Expr *>(parsed), false));
}

bool has_index(Relation relation, const IndexForm &wanted)
{
    if (!has_columns(relation, wanted.key) ||
        (wanted.condition != nullptr && !has_columns(relation, wanted.condition->column)))
        return false;
    bool found = false;
    ListCell *cell;
    foreach (cell, RelationGetIndexList(relation)) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        found = found || serves(relation, index, wanted);
        index_close(index, AccessShareLock);
    }
    return found;
}

Oid find_check(Relation relation, const CheckForm &wanted)
{
    const TupleConstr *constraints = RelationGetDescr(relation)->constr;
    if (constraints == nullptr || !has_columns(relation, wanted.column))
        return InvalidOid;
    List *condition = conditions_of(relation, wanted.condition);
    for (int i = 0; i < constraints->num_check; i++) {
        Node *check = eval_const_expressions(nullptr, static_cast<Node *>(stringToNode(constraints->check[i].ccbin)));
        List *checks = make_ands_implicit(canonicalize_qual(reinterpret_cast<Expr *>(check), true));
        // Weakly, as a check passes for NULL too.
        if (predicate_implied_by(condition, checks, true))
            return get_relation_constraint_oid(RelationGetRelid(relation), constraints->check[i].ccname, false);
    }
    return InvalidOid;
}

bool may_be_indexing(Oid table)
{
    Oid types[] = {OIDOID};
    Datum parameters[] = {ObjectIdGetDatum(table)};
    if (SPI_execute_with_args("SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                              " WHERE d.datname = current_database() AND l.locktype = 'relation' AND l.relation = $1"
                              " AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()",
                              1, types, parameters, nullptr, true, 1) != SPI_OK_SELECT)
        elog(ERROR, "could not read pg_locks");
    return SPI_processed > 0;
}

const char *create_index(const IndexForm &wanted, const char *name, bool concurrently)
{
    StringInfoData sql;
    initStringInfo(&sql);
    appendStringInfo(&sql, "CREATE %sINDEX %s", wanted.kind == IndexKind::plain ? "" : "UNIQUE ",
                     concurrently ? "CONCURRENTLY " : "");
    if (name != nullptr)
        appendStringInfo(&sql, "%s ", quote_identifier(name));
    appendStringInfo(&sql, "ON %s (", quote_qualified_identifier(kudos_schema, wanted.table));
    for (int k = 0; k < key_count(wanted); k++)
        appendStringInfo(&sql, "%s%s", k > 0 ? ", " : "", quote_identifier(wanted.key[k]));
    appendStringInfoChar(&sql, ')');
    if (wanted.condition != nullptr)
        appendStringInfo(&sql, " WHERE %s", wanted.condition->predicate);
    appendStringInfoChar(&sql, ';');
    return sql.data;
}

} // namespace kudos::server
