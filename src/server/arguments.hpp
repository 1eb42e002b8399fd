// Arguments and results of SQL functions.
#pragma once

#include "pg.hpp"

extern "C" {
#include "access/htup_details.h"
#include "funcapi.h"
#include "utils/uuid.h"
}

#include <string_view>

#include "../core/batch.hpp"

namespace kudos::server {

// Raises 22004 where the argument is null.
inline void require_argument(FunctionCallInfo fcinfo, int argument, const char *name)
{
    if (PG_ARGISNULL(argument))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
}

// Empty where the argument is null.
inline std::string_view text_argument(FunctionCallInfo fcinfo, int argument)
{
    if (PG_ARGISNULL(argument))
        return {};
    const varlena *packed = PG_DETOAST_DATUM_PACKED(PG_GETARG_DATUM(argument));
    return {VARDATA_ANY(packed), VARSIZE_ANY_EXHDR(packed)};
}

// The argument must not be null.
inline Uuid uuid_argument(FunctionCallInfo fcinfo, int argument)
{
    Uuid uuid;
    memcpy(uuid.bytes.data(), PG_GETARG_UUID_P(argument)->data, UUID_LEN);
    return uuid;
}

// Of a function with OUT columns.
inline Datum result_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
    TupleDesc row;
    if (get_call_result_type(fcinfo, nullptr, &row) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "the function must return a row");
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(row), values, nulls));
}

} // namespace kudos::server
