# lease.pl FILE r|w|rw READ|WRITE: opens, asks for a lease, and says how it went.
use strict; use warnings; use Fcntl; use POSIX ();
my ($path, $how, $kind) = @ARGV;
my $flags = $how eq "r" ? O_RDONLY : $how eq "w" ? O_WRONLY : O_RDWR;
sysopen(my $file, $path, $flags) or die "open: $!";
my $set = fcntl($file, 1024, $kind eq "READ" ? F_RDLCK : F_WRLCK);
if (!$set) { my ($number) = grep { $_ !~ /^(EWOULDBLOCK|ENOTSUP)$/ && $!{$_} } keys %!; print $number; exit; }
my $have = fcntl($file, 1025, 0);
print "lease ", $have == F_WRLCK ? "WRITE" : $have == F_RDLCK ? "READ" : "none";
