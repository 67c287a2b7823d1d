module github.com/tideway-io/tideway

go 1.26
