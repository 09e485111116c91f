# handle.pl FILE DIR: a handle of FILE, opened again below the mount of DIR, gives the same contents.
use strict; use warnings;
my ($path, $dir) = @ARGV;
my $handle = pack("I i x128", 128, 0);
my $mount = pack("i", 0);
my $fail = sub { my ($name) = grep { $_ !~ /^(EWOULDBLOCK|ENOTSUP)$/ && $!{$_} } keys %!; print "$_[0] $name"; exit };
syscall(303, -100, $path, $handle, $mount, 0) == 0 or $fail->("name_to_handle_at");
my $number = syscall(257, -100, $dir, 0200000, 0);
$number >= 0 or $fail->("open");
my $file = syscall(304, $number, $handle, 0);
$file >= 0 or $fail->("open_by_handle_at");
open(my $in, "<&=", $file) or $fail->("fdopen");
local $/; print <$in>;
