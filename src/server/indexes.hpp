// Whether a table has the indexes and checks that it should have, under whatever name and spelling.
#pragma once

#include "pg.hpp"

extern "C" {
#include "utils/rel.h"
}

#include "horde_form.hpp"

namespace kudos::server {

bool has_column(Relation relation, const char *name);

// A valid index that does what the form asks of it.
bool has_index(Relation relation, const IndexForm &wanted);

// The constraint that implies the condition of the form; invalid OID: there is none.
Oid find_check(Relation relation, const CheckForm &wanted);

// A list of the conjuncts of a condition on the table, prepared as the planner prepares predicates.
List *conditions_of(Relation relation, const char *condition);

// Whether somebody else holds the lock that CREATE INDEX CONCURRENTLY holds from start to end: then an
// index that is not valid may be one that is not finished. Inside an SPI connection.
bool may_be_indexing(Oid table);

// "CREATE [UNIQUE] INDEX [CONCURRENTLY] name ON table (keys) [WHERE ...];" without a name, the server
// chooses one.
const char *create_index(const IndexForm &wanted, const char *name, bool concurrently);

} // namespace kudos::server
