# The long crash storm; test/torture/run sets its bounds.
use strict;
use warnings;
use CrashStorm;
use KudosTest;
use Test::More;

my $storm = crash_storm(
	seed => $ENV{TORTURE_SEED},
	kills => $ENV{TORTURE_KILLS},
	seconds => $ENV{TORTURE_SECONDS},
	kills_per_round => $ENV{TORTURE_ROUND});
ends_well($storm->{node}, qr/signal 9|was not properly shut down/);
print "$storm->{figures}\n";
done_testing();
