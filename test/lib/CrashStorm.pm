# A crash storm: clients do the application's business, other projectors fold beside the worker, and at random
# moments processes are killed and the server is restarted. After each round everything is folded and checked
# against the archive.
#
#   crash_storm(seed => 1, kills => 500, seconds => 1800, kills_per_round => 25)
#
# All choices come from the seed: what the harness does and how long it waits before, and what each client
# does. When a kill meets which statement is left to the machine.
package CrashStorm;

use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use Exporter 'import';
use FindBin;
use IPC::Open3 qw(open3);
use KudosTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(crash_storm first_actions lost_steps surprises);

my $patience = 60; # seconds after which somebody is stuck

# ---------------------------------------------------------------------------------------------------
# Choices

# dice(NAME): a function that gives numbers below its argument, the same ones for the same name.
sub dice
{
	my ($name) = @_;
	my $rolls = 0;
	return sub { hex(substr(md5_hex("$name/" . $rolls++), 0, 8)) % $_[0] };
}

# choose(DICE, THING => WEIGHT, ...)
sub choose
{
	my ($dice, @things) = @_;
	my $sum = 0;
	$sum += $things[$_] for grep { $_ % 2 } 0 .. $#things;
	my $left = $dice->($sum);
	while (my ($thing, $weight) = splice @things, 0, 2)
	{
		return $thing if $left < $weight;
		$left -= $weight;
	}
}

# A storm is made of random moments; nothing passes or fails by how long they are.
sub pause
{
	my ($milliseconds) = @_;
	select undef, undef, undef, $milliseconds / 1000;
}

# ---------------------------------------------------------------------------------------------------
# Clients: processes of their own, each with a psql that it feeds line by line

# What a client may meet whatever it does: it is terminated, the server goes down, comes up or is down. With whom
# it came to a deadlock, the log tells.
my %always_expected = map { $_ => 1 } qw(57P01 57P02 57P03 40P01 cancelled lost refused);

sub open_session
{
	my ($client) = @_;
	local $ENV{PGAPPNAME} = "storm $client->{role} $client->{number}";
	local $ENV{PGOPTIONS} = "-c statement_timeout=${patience}s -c client_min_messages=warning";
	my $session = { said => [] };
	$session->{pid} = open3($session->{in}, $session->{out}, undef,
		'psql', '-X', '-q', '-A', '-t', '-v', 'VERBOSITY=sqlstate', '-d', $client->{connection});
	return $session;
}

sub close_session
{
	my ($client) = @_;
	my $session = delete $client->{session};
	close $session->{in};
	waitpid $session->{pid}, 0;
}

# Runs one statement; gives its SQLSTATE, or what became of the connection.
sub run_statement
{
	my ($client, $statement) = @_;
	local $SIG{PIPE} = 'IGNORE'; # psql may be gone
	my $session = $client->{session} //= open_session($client);
	$session->{said} = [];
	my $messages = '';
	print { $session->{in} } "$statement;\n\\echo done :SQLSTATE :LAST_ERROR_MESSAGE\n";
	$session->{in}->flush;
	while (my $line = readline $session->{out})
	{
		chomp $line;
		if ($line =~ /^done (\w{5}) ?(.*)/)
		{
			$client->{message} = $2;
			return $1 eq '57014' && $2 !~ /timeout/ ? 'cancelled' : $1;
		}
		last if $line =~ /^done/; # without an SQLSTATE: the connection is gone, but psql goes on
		if ($line =~ /^(?:WARNING|ERROR|FATAL|PANIC|psql):/)
		{
			$messages .= "$line\n";
			next;
		}
		push @{ $session->{said} }, $line;
	}
	close_session($client);
	return $1 if $messages =~ /FATAL:\s+([0-9A-Z]{5})/;
	return $messages =~ /psql: error: connection/ ? 'refused' : 'lost';
}

sub count
{
	my ($client, $what) = @_;
	$client->{counts}{$what}++;
}

# Runs STATEMENT as part of ACTION; true if it succeeded.
sub try_statement
{
	my ($client, $action, $statement) = @_;
	my $state = run_statement($client, $statement);
	return 1 if $state eq '00000';
	count($client, "error $state");
	push @{ $client->{unexpected} }, "$action->{name}: $state $client->{message}: $statement"
	  unless $always_expected{$state} || grep { $_ eq $state } @{ $action->{expects} // [] };
	return 0;
}

# What the database says was this client's last step must be the last that was acknowledged, or the one that was
# under way when the connection went.
sub find_last_step
{
	my ($client) = @_;
	while (run_statement($client, "SELECT coalesce(max(step), 0) FROM storm.clients WHERE client = $client->{number}") ne '00000')
	{
		return 0 if is_over($client);
		pause(50);
	}
	my ($stored) = @{ $client->{session}{said} };
	push @{ $client->{unexpected} }, "acknowledged step $client->{acknowledged} is lost, the last is $stored"
	  unless !defined $client->{acknowledged} || $stored == $client->{acknowledged}
	  || $stored == ($client->{uncertain} // -1);
	$client->{acknowledged} = $stored;
	$client->{uncertain} = undef;
	$client->{step} = $stored if $client->{step} < $stored;
	return 1;
}

sub run_action
{
	my ($client, $action) = @_;
	my $how = $action->{how};
	$client->{uncertain} = $client->{step} if $how ne 'rollback';
	my $done = 1;
	$done &&= try_statement($client, $action, $_) for @{ $action->{before} // [] };
	$done &&= try_statement($client, $action, 'BEGIN') if $how ne 'plain';
	$done &&= try_statement($client, $action, $action->{statement});
	if ($how ne 'plain' && $client->{session})
	{
		pause($action->{pause}) if $done;
		$done = try_statement($client, $action, $how eq 'rollback' || !$done ? 'ROLLBACK' : 'COMMIT') && $done;
	}
	return unless $client->{session}; # it will ask
	count($client, $done ? "$how $action->{name}" : "failed $action->{name}");
	$client->{acknowledged} = $client->{step} if $done && $how ne 'rollback' && $action->{is_step};
	$client->{uncertain} = undef;
	if ($action->{is_check} && $done)
	{
		push @{ $client->{unexpected} }, map { "at some moment: $_" } @{ $action->{said} // $client->{session}{said} };
	}
}

# Odd accounts, workers and teams see whole kudos only.
sub posting
{
	my ($client) = @_;
	my ($dice, $number) = @$client{qw(dice number)};
	my $step = ++$client->{step};
	my $is_whole = $dice->(2);
	my $account = sub {
		return $is_whole ? 1 : 2 if $dice->(10) < 4;
		return 2 * $dice->(15) + $is_whole;
	};
	my $cents = $is_whole ? 100 * (1 + $dice->(40)) : 1 + $dice->(3000);
	my $how = $dice->(2) ? "'call'" : "'plain'";
	my $guest = 100 + 2 * $dice->(4) + $is_whole;
	my $worker = 2 - $is_whole + 2 * $dice->(6);
	my $team = $dice->(3) ? 2 - $is_whole + 2 * $dice->(2) : 0;
	my $hold = $dice->(4);
	my $holder = 1 + ($number * 5 + $hold) % 29;
	my $held = $holder % 2 ? 100 * (1 + $dice->(40)) : 1 + $dice->(3000);
	my $name = choose($dice,
		settle => 50, count_guest => 8, transfer => 8, transfer_again => 3, reserve => 8, spend => 10, release => 3,
		replace_worker => 3, replace_team => 1, check_in => 5, wipe_guest => 3);
	my %arguments = (
		settle => join(', ', $how, $account->(), $dice->(8) ? $account->() : $guest, $cents, $worker, $dice->(12) ? 0 : 1, $team,
			1 + $dice->(127)),
		count_guest => join(', ', $how, $guest, $cents, $dice->(10) ? 'false' : 'true'),
		transfer => join(', ', $account->(), $account->(), $cents, "'$number/$step'"),
		transfer_again => $client->{last_transfer} // "1, 3, 100, '$number/$step'",
		reserve => join(', ', $holder, $hold, 3 * $held, $dice->(2) ? 'true' : 'false'),
		spend => join(', ', $how, $holder, $hold, $held, $dice->(3) ? 'false' : 'true'),
		release => $hold,
		replace_worker => join(', ', $worker, $team),
		replace_team => 1 + $dice->(4),
		check_in => $worker,
		wipe_guest => $guest,
	);
	my %expects = (
		settle => [qw(22023 23503)],         # the guest was wiped meanwhile
		count_guest => ['22023'],
		transfer => [qw(55000 22023)],       # shadow mode; to oneself
		transfer_again => [qw(55000 22023)],
		replace_worker => ['23503'],         # its owner or team was deleted meanwhile
	);
	$client->{last_transfer} = $arguments{transfer} if $name eq 'transfer';
	my $function = $name eq 'transfer_again' ? 'transfer' : $name;
	return {
		name => $name,
		is_step => 1,
		statement => "SELECT storm.$function($number, $step, $arguments{$name})",
		how => choose($dice, plain => 84, rollback => 8, slow => 8),
		pause => $dice->(150),
		expects => $expects{$name},
		rest => $dice->(25),
	};
}

sub projection
{
	my ($client) = @_;
	my $dice = $client->{dice};
	my $path = choose($dice, fold_now => 6, catch_up => 3, other_applier => 6);
	my %statement = (
		fold_now => 'SELECT kudos_fold_now(' . choose($dice, '' => 3, '7, 3' => 2, '200, 1' => 1) . ')',
		catch_up => 'CALL kudos_catch_up(20)',
		other_applier => 'SELECT storm.other_applier(' . (5 + $dice->(150)) . ')',
	);
	return {
		name => $path,
		before => ["SET storm.path = '$path'"],
		statement => $statement{$path},
		how => $path eq 'catch_up' ? 'plain' : choose($dice, plain => 8, rollback => 1, slow => 1),
		pause => $dice->(100),
		expects => ['55P03'],
		rest => $dice->(300),
	};
}

# To shadow mode and soon back; snapshots; and looks whether all is right at this moment.
sub operation
{
	my ($client) = @_;
	my $dice = $client->{dice};
	my $name = $client->{is_shadow} ? 'to_ledger' : choose($dice, to_shadow => 8, snapshot => 4, look => 1);
	$client->{is_shadow} = $name eq 'to_shadow';
	my %statement = (
		to_shadow => "SELECT kudos_set_mode('shadow')",
		to_ledger => "SELECT kudos_set_mode('ledger')",
		snapshot => 'SELECT kudos_snapshot()',
		look => 'SELECT storm.errors(false)',
	);
	my %expects = (
		to_shadow => [qw(55000 55P03)], # somebody holds a row that is queued, or a hold
		snapshot => ['23503'],  # a user is wiped meanwhile
	);
	return {
		name => $name,
		before => ["SET storm.path = 'set_mode'"],
		statement => $statement{$name},
		how => 'plain',
		is_check => $name eq 'look',
		expects => $expects{$name},
		rest => $name eq 'to_shadow' ? $dice->(200) : 200 + $dice->(1500),
	};
}

my %business = (poster => \&posting, projector => \&projection, operator => \&operation);

# Told to stop, or left alone by a harness that failed.
sub is_over
{
	my ($client) = @_;
	return $client->{is_stopping} || getppid() != $client->{parent};
}

sub run_client
{
	my ($client) = @_;
	$client->{is_stopping} = 0;
	$client->{step} = 0;
	local $SIG{TERM} = sub { $client->{is_stopping} = 1 };
	while (!is_over($client))
	{
		next unless $client->{session} || find_last_step($client);
		my $action = $business{ $client->{role} }->($client);
		run_action($client, $action);
		pause($action->{rest});
	}
	close_session($client) if $client->{session};
	open my $report, '>', $client->{report} or die $!;
	print $report "acknowledged $client->{acknowledged} " . ($client->{uncertain} // 'none') . "\n"
	  if defined $client->{acknowledged};
	print $report "count $client->{counts}{$_} $_\n" for sort keys %{ $client->{counts} };
	print $report "unexpected $_\n" for @{ $client->{unexpected} };
	close $report or die $!;
}

# The child must not run what the parent's modules do at their end.
sub start_client
{
	my ($storm, $role, $number) = @_;
	my %client = (
		role => $role,
		number => $number,
		dice => dice("$storm->{seed}/$storm->{round}/$number"),
		connection => $storm->{node}->connstr('horde'),
		parent => $$,
		report => PostgreSQL::Test::Utils::tempdir() . "/$storm->{round}-$number",
	);
	my $pid = fork() // die "cannot fork: $!";
	if ($pid == 0)
	{
		my $done = eval { run_client(\%client); 1 };
		print STDERR "storm client: $@" unless $done;
		POSIX::_exit($done ? 0 : 1);
	}
	$client{pid} = $pid;
	return \%client;
}

sub stop_clients
{
	my ($storm) = @_;
	kill 'TERM', $_->{pid} for @{ $storm->{clients} };
	my $deadline = time + $patience;
	for my $client (@{ $storm->{clients} })
	{
		my $ended;
		pause(20) until ($ended = waitpid($client->{pid}, POSIX::WNOHANG())) || time > $deadline;
		if (!$ended || $?)
		{
			kill 'KILL', $client->{pid};
			waitpid $client->{pid}, 0;
			push @{ $storm->{unexpected} }, "client $client->{number} ($client->{role}) does not end";
			next;
		}
		for my $line (split /\n/, slurp_file($client->{report}))
		{
			$storm->{counts}{$2} += $1 if $line =~ /^count (\d+) (.*)/;
			$client->{said} = [ $1, $2 ] if $line =~ /^acknowledged (\d+) (\w+)/;
			push @{ $storm->{unexpected} }, "client $client->{number} ($client->{role}): $1" if $line =~ /^unexpected (.*)/;
		}
	}
}

# ---------------------------------------------------------------------------------------------------
# The harness

# kinds of kills, and what else is done
my @actions = (
	'kill worker' => 36, 'terminate worker' => 14, 'kill client' => 8, 'kill launcher' => 4, 'terminate launcher' => 4,
	'kill postmaster' => 3, 'restart fast' => 5, 'restart immediate' => 6, 'terminate client' => 10, 'cancel worker' => 5,
	'cancel client' => 5);

# Gives the next action each time it is called.
sub planned
{
	my ($seed) = @_;
	my $dice = dice("$seed/harness");
	return sub {
		return {
			pause => $dice->(350),
			what => choose($dice, @actions),
			which => $dice->(1000),
			is_aimed => $dice->(2),
			late_by => $dice->(20),
		};
	};
}

# The first COUNT actions of a seed, as text.
sub first_actions
{
	my ($seed, $count) = @_;
	my $next = planned($seed);
	return map { my $action = $next->(); join ' ', map { "$_ $action->{$_}" } sort keys %$action } 1 .. $count;
}

# Asks until there is an answer: the server may be down or recovering.
sub answer
{
	my ($storm, $query) = @_;
	my $deadline = time + $patience;
	while (time <= $deadline)
	{
		my ($status, $out) = $storm->{node}->psql('horde', $query);
		return $out if $status == 0;
		pause(30);
	}
	die "nobody answers to: $query\n";
}

my %target = (
	worker => "SELECT s.pid FROM kudos_projector_stats s JOIN pg_stat_activity a USING (pid)"
	  . " WHERE s.database = 'horde' AND s.state IN ('idle', 'folding') AND a.backend_type = '$worker_type'",
	launcher => "SELECT pid FROM pg_stat_activity WHERE backend_type = '$launcher_type'",
	client => "SELECT pid FROM (SELECT pid, row_number() OVER (ORDER BY pid) - 1 AS place, count(*) OVER () AS all"
	  . " FROM pg_stat_activity WHERE application_name ~ '^storm (poster|projector|operator)') c WHERE place = %d %% \"all\"",
);

sub postmaster_of
{
	my ($node) = @_;
	my ($pid) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
	return $pid;
}

sub children_of
{
	my ($parent) = @_;
	my @children;
	for my $status (glob '/proc/[0-9]*/status')
	{
		open my $file, '<', $status or next; # it has ended
		my ($of) = map { /^PPid:\s+(\d+)/ ? $1 : () } <$file>;
		push @children, $1 if defined $of && $of == $parent && $status =~ /(\d+)/;
	}
	return @children;
}

# Nothing but a process of this very server is ever sent a signal.
sub strike
{
	my ($storm, $signal, $pid) = @_;
	return 0 unless grep { $_ == $pid } children_of(postmaster_of($storm->{node}));
	$storm->{killed}{$pid} = 1 if $signal eq 'KILL';
	return kill $signal, $pid;
}

sub kill_postmaster
{
	my ($node) = @_;
	my $postmaster = postmaster_of($node);
	my @all = ($postmaster, children_of($postmaster));
	$node->kill9;
	my $deadline = time + $patience;
	pause(10) while time <= $deadline && grep { kill 0, $_ } @all;
	$node->start;
}

# Finds the process that an action is about. Through a session that stays open while it can: a cycle is over
# sooner than a psql has started.
sub find_target
{
	my ($storm, $query) = @_;
	my $harness = $storm->{harness};
	my $deadline = time + $patience;
	while (time <= $deadline)
	{
		my $state = run_statement($harness, $query);
		return $harness->{session}{said}[0] if $state eq '00000' && @{ $harness->{session}{said} };
		pause(20);
	}
	die "there is nobody: $query\n";
}

# Returns, true, as soon as the worker PID has the applier lock: it is in the middle of a cycle.
sub find_in_the_middle
{
	my ($storm, $pid) = @_;
	my $state = run_statement($storm->{harness}, "SELECT storm.is_in_the_middle($pid)");
	return $state eq '00000' && $storm->{harness}{session}{said}[0] eq 't';
}

# Does what is planned; true if it was done to somebody.
sub carry_out
{
	my ($storm, $action) = @_;
	my $node = $storm->{node};
	my ($verb, $whom) = split / /, $action->{what};
	if ($verb eq 'restart' || $whom eq 'postmaster')
	{
		pause($action->{pause});
		if ($verb eq 'kill')
		{
			kill_postmaster($node);
		}
		elsif ($whom eq 'fast')
		{
			# The server itself may hang when it is asked for a fast shutdown while it recovers from a crash: its
			# checkpointer, started for the recovery, is told nothing (seen in 15.20; no process of ours is there yet).
			$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
			$node->restart;
		}
		else
		{
			$node->stop('immediate');
			$node->start;
		}
		return 1;
	}
	no warnings 'redundant'; # not every query asks which
	my $pid = find_target($storm, sprintf($target{$whom}, $action->{which}));
	pause($action->{pause});
	$storm->{aimed}++ if $whom eq 'worker' && $action->{is_aimed} && find_in_the_middle($storm, $pid);
	pause($action->{late_by});
	return strike($storm, $verb eq 'kill' ? 'KILL' : $verb eq 'terminate' ? 'TERM' : 'INT', $pid);
}

sub is_kill
{
	my ($what) = @_;
	return $what =~ /^kill/ || $what =~ /^terminate (worker|launcher)/;
}

# Lines of the log that tell of something which nobody caused.
sub surprises
{
	my ($storm, $from) = @_; # an offset
	my @surprises;
	for my $line (log_lines($storm->{node}, qr/terminated by signal|PANIC:|TRAP:|WARNING:.*leak|(?:worker|launcher) \w{5}: /, $from))
	{
		next if $line =~ /\(PID (\d+)\) was terminated by signal 9/ && $storm->{killed}{$1};
		if ($line =~ /kudos_projector (?:worker|launcher) (\w{5}): (ERROR|FATAL)/)
		{
			$storm->{counts}{"worker $1"}++;
			# stopped, cancelled, or a lock that was not had in time, for which there is a next time
			next if $1 =~ /^(?:57P01|57P02|57014|55P03|40P01)$/;
		}
		elsif ($line !~ /PANIC|TRAP|terminated|leak/)
		{
			next;
		}
		push @surprises, $line;
	}
	# Who deletes a user locks him and then, to see that none is left, his currency rows; a fold has locked these
	# before it wants the user. Nobody else may lock in another order than a fold does.
	my $log = slurp_file($storm->{node}->logfile, $from);
	while ($log =~ /ERROR:  deadlock detected\n.* DETAIL:  (.*\n(?:\t.*\n)*)/g)
	{
		push @surprises, "deadlock: $1" unless $1 =~ /storm\.wipe_guest/;
	}
	return @surprises;
}

# start_storm(SEED): the server, with settings and a form of the tables that the seed chooses, and the cast.
sub start_storm
{
	my ($seed) = @_;
	my $dice = dice("$seed/server");
	my $form = choose($dice, fresh => 1, migrated => 1);
	my $batch_size = choose($dice, 15 => 1, 60 => 2, 1000 => 1);
	my $wake_on_commit = choose($dice, on => 1, off => 1);
	my $node = new_server('storm',
		{
			'kudos_projector.databases' => 'horde',
			'kudos_projector.interval' => '20ms',
			'kudos_projector.batch_size' => $batch_size,
			'kudos_projector.wake_on_commit' => $wake_on_commit,
			'kudos_projector.trust_threshold' => '200',
			# A process that is killed leaves its writes with the kernel: only a machine that stops needs fsync.
			'fsync' => 'off',
			# little to write at a restart, and to redo after a crash
			'shared_buffers' => '16MB',
			'max_wal_size' => '64MB',
			'min_wal_size' => '32MB',
			'restart_after_crash' => 'on',
			'deadlock_timeout' => '500ms',
			'log_line_prefix' => '%m [%p] %b %e: ',
		});
	$node->safe_psql('postgres', 'CREATE DATABASE horde');
	load_tables($node, 'horde', $form);
	PostgreSQL::Test::Utils::system_or_bail('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('horde'),
		'-f', "$FindBin::RealBin/../data/crash_storm.sql");
	wait_for_worker($node, 'horde');
	my $storm = {
		node => $node,
		seed => $seed,
		server => "$form tables, batches of $batch_size, wake_on_commit $wake_on_commit",
		round => 0,
		counts => {},
		killed => {},
		unexpected => [],
		harness => { role => 'harness', number => 0, connection => $node->connstr('horde') },
	};
	$storm->{snapshot} = $node->safe_psql('horde', 'SELECT kudos_snapshot()');
	return $storm;
}

# Clients whose last step is not the last that was acknowledged, nor one whose outcome they never learned.
sub lost_steps
{
	my ($storm) = @_;
	my @lost;
	for my $client (grep { $_->{said} } @{ $storm->{clients} })
	{
		my ($acknowledged, $uncertain) = @{ $client->{said} };
		my $stored = answer($storm, "SELECT coalesce(max(step), 0) FROM storm.clients WHERE client = $client->{number}");
		push @lost, "client $client->{number}: $stored, not $acknowledged" unless $stored == $acknowledged || $stored eq $uncertain;
	}
	return @lost;
}

# Everybody has stopped: what was committed is folded by the worker alone, and all is right.
sub is_settled
{
	my ($storm, $name, $log_from) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $node = $storm->{node};
	my $from = Time::HiRes::time();
	answer($storm, "SELECT kudos_set_mode('ledger')");
	wait_until($node, 'horde', 'SELECT count(*) = 0 FROM storm.unsettled', "$name: the worker folds what is left");
	my $now = answer($storm, 'SELECT storm.utc()');
	wait_until($node, 'horde', "SELECT bool_and(applied_at > '$now') AND count(*) = 1 FROM kudos_ledger_applier_state",
		"$name: and its heart beats");
	is(answer($storm, 'SELECT * FROM storm.errors(true)'), '', "$name: all is as the archive says");
	is(join("\n", lost_steps($storm)), '', "$name: what was acknowledged is there");
	# since the first snapshot, and since the last, which was taken in the storm
	is( answer($storm, "SELECT r.* FROM (VALUES ('$storm->{snapshot}'::uuid),"
			  . " ((SELECT snapshot_id FROM kudos_snapshots ORDER BY created DESC LIMIT 1))) s (id), kudos_reconcile(s.id) r"),
		'',
		"$name: nothing drifted from the snapshots");
	is(join("\n", @{ $storm->{unexpected} }), '', "$name: no client met what it should not");
	is(join("\n", surprises($storm, $log_from)), '', "$name: the log tells of nothing else than was done");
	$storm->{check_seconds} += Time::HiRes::time() - $from;
}

sub figures
{
	my ($storm) = @_;
	my $counts = $storm->{counts};
	my $list = sub {
		my ($pattern) = @_;
		return join(', ', map { /$pattern/ ? "$1 $counts->{$_}" : () } sort keys %$counts) || 'none';
	};
	my $folded = answer($storm, "SELECT string_agg(path || ' ' || rows, ', ' ORDER BY path) FROM (SELECT path, sum(rows) AS rows
		FROM storm.folds GROUP BY path) f");
	my $posted = answer($storm, q{SELECT format('%s currency and %s stat rows (%s quarantined, %s floor adjustments, %s drains,
		%s transfers, %s holds)', (SELECT count(*) FROM kudos_ledger), (SELECT count(*) FROM kudos_stat_events),
		(SELECT count(*) FROM kudos_stat_events WHERE quarantined),
		(SELECT count(*) FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT'),
		(SELECT count(DISTINCT event_id) FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION'),
		(SELECT count(*) FROM kudos_transfer_requests), (SELECT count(*) FROM kudos_reservations))});
	$posted =~ s/\s+/ /g;
	return sprintf('storm: seed %s, %s, %d rounds, %d kills (%s; the worker %d times in the middle of a cycle), others (%s), posted %s, folded by %s,'
		  . ' errors of clients: %s, of the worker: %s, %.0f s, of which %.0f s for checks',
		@$storm{qw(seed server round kills)},
		$list->(qr/^did ((?:kill .*|terminate (?:worker|launcher)))$/), $storm->{aimed} // 0, $list->(qr/^did (restart .*|cancel .*|terminate client)$/),
		$posted, $folded, $list->(qr/^error (.*)/), $list->(qr/^worker (.*)/),
		Time::HiRes::time() - $storm->{began}, $storm->{check_seconds});
}

# One test file: until KILLS kills are done or SECONDS are over. Gives the storm, its server running.
sub crash_storm
{
	my (%bounds) = @_;
	note("storm: seed $bounds{seed}");
	my $storm = start_storm($bounds{seed});
	my $next = planned($bounds{seed});
	@$storm{qw(began kills check_seconds)} = (Time::HiRes::time(), 0, 0);
	my $end = $storm->{began} + $bounds{seconds};
	while ($storm->{kills} < $bounds{kills} && Time::HiRes::time() < $end)
	{
		my $round = ++$storm->{round};
		my $log_from = -s $storm->{node}->logfile;
		my $number = 0;
		$storm->{clients} = [ map { start_client($storm, $_, ++$number) } ('poster') x 4, ('projector') x 2, 'operator' ];
		my $kills = 0;
		while ($kills < $bounds{kills_per_round} && $storm->{kills} < $bounds{kills} && Time::HiRes::time() < $end)
		{
			my $action = $next->();
			my $done = eval { carry_out($storm, $action) };
			push @{ $storm->{unexpected} }, "$action->{what}: $@" if $@;
			last if $@;
			next unless $done;
			$storm->{counts}{"did $action->{what}"}++;
			next unless is_kill($action->{what});
			$kills++;
			$storm->{kills}++;
		}
		close_session($storm->{harness}) if $storm->{harness}{session}; # the next clients must not inherit it
		stop_clients($storm);
		is_settled($storm, "round $round", $log_from);
		last unless Test::More->builder->is_passing;
		note(sprintf '%4.0f s: round %d, %d kills', Time::HiRes::time() - $storm->{began}, $round, $storm->{kills});
	}
	note($storm->{figures} = figures($storm));
	diag("seed $bounds{seed} repeats these choices") unless Test::More->builder->is_passing;
	return $storm;
}

1;
