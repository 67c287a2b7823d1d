module github.com/tideway-io/tideway

go 1.26

require example.com/third v0.0.0

replace example.com/third => ./third
