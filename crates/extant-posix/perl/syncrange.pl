# syncrange.pl FILE OFFSET LEN FLAGS: sync_file_range.
use strict; use warnings;
my ($path, $offset, $len, $flags) = @ARGV;
my $file;
open($file, "+<", $path) or open($file, "<", $path) or die "open: $!";
my $done = syscall(277, fileno($file), $offset + 0, $len + 0, $flags + 0);
my ($name) = grep { $_ !~ /^(EWOULDBLOCK|ENOTSUP)$/ && $!{$_} } keys %!;
print $done == 0 ? "ok" : $name;
