// The server's headers, for C++; every file of this layer includes this first.
//
// Frames of this layer may be jumped over by a server error, so they hold nothing with a destructor
// (docs/architecture.md, two regimes; checked by test/tidy).
#pragma once

extern "C" {
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
}

// C++ has its own spelling of these.
#undef Min
#undef Max
#undef gettext
#undef dgettext
#undef ngettext
#undef dngettext

#include "../settings.h"
