/*
 * entry.h: what the shim (C) calls in the server layer (C++).
 */
#ifndef KUDOS_ENTRY_H
#define KUDOS_ENTRY_H

#ifdef __cplusplus
extern "C" {
#endif

/* SQL functions; each raises server errors, none lets an exception out */
extern Datum kudos_entry_fold_now(FunctionCallInfo fcinfo);
extern Datum kudos_entry_catch_up(FunctionCallInfo fcinfo);
extern Datum kudos_entry_health(FunctionCallInfo fcinfo);
extern Datum kudos_entry_stats(FunctionCallInfo fcinfo);
extern Datum kudos_entry_mode(FunctionCallInfo fcinfo);
extern Datum kudos_entry_pin_mode(FunctionCallInfo fcinfo);
extern Datum kudos_entry_set_mode(FunctionCallInfo fcinfo);
extern Datum kudos_entry_floor(FunctionCallInfo fcinfo);
extern Datum kudos_entry_available(FunctionCallInfo fcinfo);
extern Datum kudos_entry_effective(FunctionCallInfo fcinfo);
extern Datum kudos_entry_reserve(FunctionCallInfo fcinfo);
extern Datum kudos_entry_release(FunctionCallInfo fcinfo);
extern Datum kudos_entry_transfer(FunctionCallInfo fcinfo);
extern Datum kudos_entry_post(FunctionCallInfo fcinfo);
extern Datum kudos_entry_post_stat(FunctionCallInfo fcinfo);
extern Datum kudos_entry_wait_applied(FunctionCallInfo fcinfo);
extern Datum kudos_entry_quarantine(FunctionCallInfo fcinfo);
extern Datum kudos_entry_requeue(FunctionCallInfo fcinfo);
extern Datum kudos_entry_accept_quarantined(FunctionCallInfo fcinfo);
extern Datum kudos_entry_install_ledger(FunctionCallInfo fcinfo);
extern Datum kudos_entry_check_schema(FunctionCallInfo fcinfo);
extern Datum kudos_entry_snapshot(FunctionCallInfo fcinfo);
extern Datum kudos_entry_reconcile(FunctionCallInfo fcinfo);
extern Datum kudos_entry_repair(FunctionCallInfo fcinfo);

/* background workers */
extern void kudos_entry_launcher(void);
extern void kudos_entry_worker(int slot);

/* library load */
extern void kudos_install_planner_hook(void);
extern void kudos_install_commit_hooks(void);
extern void kudos_install_utility_hook(void);
extern Size kudos_shared_state_size(void);
extern void kudos_shared_state_startup(void);
extern bool kudos_databases_valid(char *value, char **problem);
extern bool kudos_threshold_valid(const char *value);

#ifdef __cplusplus
}
#endif

#endif							/* KUDOS_ENTRY_H */
